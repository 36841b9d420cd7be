"""The reproduction of the paper: tasks, data sets, experiments, sweeps and reports."""

from anyorder.paper.runner.sweep import sweep as sweep
from anyorder.paper.runner.trial import Chart as Chart
from anyorder.paper.runner.trial import Expected as Expected
from anyorder.paper.runner.trial import Experiment as Experiment
from anyorder.paper.runner.trial import Plan as Plan
from anyorder.paper.runner.trial import grid as grid
