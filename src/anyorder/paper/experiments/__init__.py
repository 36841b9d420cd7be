"""Every experiment: the tables and figures of the paper, and some beyond it."""

from anyorder.paper.experiments.synthetic import EXPERIMENTS, GROUPS

__all__ = ["EXPERIMENTS", "GROUPS"]
