"""Every experiment, one file a claim: the tables and figures of the paper, and some beyond it."""

import importlib
import pkgutil

from anyorder.paper.runner.trial import Experiment

_modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
_found = [e for module in _modules for e in vars(module).values() if isinstance(e, Experiment)]
_found.sort(key=lambda experiment: experiment.reported == "not tried")  # those of the paper come first
EXPERIMENTS = {experiment.name: experiment for experiment in _found}

# Names for several at once.
GROUPS = {
    "synthetic": [name for name, experiment in EXPERIMENTS.items() if experiment.data is None],
    "real": [name for name, experiment in EXPERIMENTS.items() if experiment.data is not None],
}
