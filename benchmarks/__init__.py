"""Speed and memory as ratios against named peers, measured in one run: ``make bench``."""
