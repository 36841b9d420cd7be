"""Shared by all tests: one thread a process, and a home that is not the user's."""

import atexit
import os
import shutil
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

# What takes minutes belongs to the long form of the attack, `make attack`.
collect_ignore = [] if os.environ.get("ANYORDER_ATTACK") == "long" else ["attack/test_processes.py"]
torch.set_num_threads(1)
os.environ["ANYORDER_HOME"] = tempfile.mkdtemp(prefix="anyorder-tests-")
atexit.register(shutil.rmtree, os.environ["ANYORDER_HOME"], ignore_errors=True)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def _fixed_default_generator() -> None:
    """Modules draw their initial weights from the default generator; tests fix it, the library never does."""
    torch.manual_seed(0)
