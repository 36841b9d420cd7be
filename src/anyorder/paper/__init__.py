"""The reproduction of the paper, and what an experiment of your own is declared with.

An :class:`Experiment` has a :class:`Plan` for each scale, whose methods choose among settings (:func:`grid`). It may
name published figures (:class:`Expected`), comparisons that decide a verdict (:class:`Versus`) and figures to draw
(:class:`Chart`). Its ``run`` gets a :class:`Trial`. :func:`sweep` makes the rows that are missing.
"""

from anyorder.paper.runner.sweep import sweep as sweep
from anyorder.paper.runner.trial import Chart as Chart
from anyorder.paper.runner.trial import Expected as Expected
from anyorder.paper.runner.trial import Experiment as Experiment
from anyorder.paper.runner.trial import Plan as Plan
from anyorder.paper.runner.trial import Trial as Trial
from anyorder.paper.runner.trial import Versus as Versus
from anyorder.paper.runner.trial import grid as grid
