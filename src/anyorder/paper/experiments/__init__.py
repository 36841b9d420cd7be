"""Every experiment, one file a claim: the tables and figures of the paper, and some beyond it."""

import importlib
import os
import pkgutil
import sys

from anyorder.checks import InputError, one_of
from anyorder.paper.runner.trial import Experiment

_modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
_found = [e for module in _modules for e in vars(module).values() if isinstance(e, Experiment)]
_found.sort(key=lambda experiment: experiment.reported == "not tried")  # those of the paper come first
EXPERIMENTS = {experiment.name: experiment for experiment in _found}


def experiment_named(name: str) -> Experiment:
    """One of ours, or one of your own, ``my_module:EXPERIMENT``."""
    module, own, attribute = name.partition(":")
    if not own:
        return EXPERIMENTS[one_of("experiment", name, EXPERIMENTS)]
    sys.path.insert(0, os.getcwd())  # a command has the folder of its script there instead
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise InputError(f"experiment {name}: {error}; run the command in the folder of {module}.py") from error
    if not isinstance(found, Experiment) or found.name in EXPERIMENTS:
        raise InputError(f"experiment {name} must be an Experiment with a name that is not one of {[*EXPERIMENTS]}")
    return found
