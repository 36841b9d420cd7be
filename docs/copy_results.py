"""Copy the table that opens results/RESULTS.md into the README, between its two marks: ``make results``."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- end of results -->)", re.DOTALL)


def with_results(readme: str, results: str) -> str:
    """The README with the first table of the results in place of its own."""
    table = re.search(r"^\|.*?\n\n", results, re.DOTALL | re.MULTILINE)
    assert table is not None, "results/RESULTS.md has no table; anyorder report results makes it"
    return BLOCK.sub(lambda _: table.group().rstrip("\n") + "\n", readme)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(with_results(readme.read_text(), (ROOT / "results/RESULTS.md").read_text()))
