"""The reproduction of the paper: tasks, data sets, experiments, sweeps and reports."""
