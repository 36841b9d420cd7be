"""The names a user may say, where no torch is needed to know them.

What registers itself when it is imported (models, optimisers, penalties, experiments) stands here once more, so that
the command line answers a slip at once; a test holds the two against each other.
"""

from __future__ import annotations

MODELS = ("recurrent", "deepsets", "janossy", "set-transformer", "multi-aggregation")
CELLS = ("rnn", "relu-rnn", "gru", "lstm", "relu")
PENALTIES = ("sire", "sub", "permutation")
PREFIXES = ("random", "given")
OPTIMIZERS = ("adam", "adamw", "rmsprop", "sgd")
SCHEDULES = ("one-cycle", "plateau", "constant")
PRECISIONS = ("no", "fp16", "bf16")
TASKS = ("classification", "regression")
MISSING = ("error", "drop-row", "mean", "zero")
SCALES = ("smoke", "laptop", "paper")
ENGINES = ("local", "ray")
SYNTHETIC = ("parity", "sub-vs-sire", "labels", "half-range", "dial", "lengths", "sum", "range", "variance")
REAL = (
    "ecg", "bags", "activity", "pointcloud", "pointcloud-1000", "pointcloud-5000",
    "perturbed-mnist", "perturbed-digits",
)  # fmt: skip
GROUPS = ("synthetic", "real")
