"""What takes minutes belongs to the long form alone."""

import os

collect_ignore = [] if os.environ.get("ANYORDER_ATTACK") == "long" else ["test_processes.py"]
