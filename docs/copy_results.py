"""Copy claims from the summary of results/RESULTS.md into the README, between its two marks: ``make results``."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- end of results -->)", re.DOTALL)
EXPERIMENTS = (
    *("parity", "sum", "range", "variance", "half-range", "sub-vs-sire"),
    *("pointcloud", "pointcloud-1000", "pointcloud-5000", "perturbed-mnist"),
    *("labels", "lengths"),  # beyond the paper
)


def with_results(readme: str, results: str) -> str:
    """The README with a line for each of ``EXPERIMENTS`` that the summary has."""
    summary = re.search(r"^\|.*?\n\n", results, re.DOTALL | re.MULTILINE)
    assert summary is not None, "results/RESULTS.md has no table; anyorder report results makes it"
    head, rule, *lines = [line.strip("| ").split(" | ", 1) for line in summary.group().strip().splitlines()]
    found = dict(lines)
    table = [head[1], rule[1], *(found[name] for name in EXPERIMENTS if name in found)]
    return BLOCK.sub(lambda _: "".join(f"| {line} |\n" for line in table), readme)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(with_results(readme.read_text(), (ROOT / "results/RESULTS.md").read_text()))
