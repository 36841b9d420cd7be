"""Copy figures from results/RESULTS.md to other pages, between their marks: ``make results``."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- end of results -->)", re.DOTALL)
CLAIMS = ("parity", "sum", "half-range", "pointcloud", "fold")


def claims(results: str) -> str:
    """Five lines of the table of claims, without what decided them."""
    head, *_ = re.findall(r"^\| claim .*\n\| ---.*\n", results, re.MULTILINE)
    lines = [re.search(rf"^\| \[[^]]*\]\(#{name}\).*\n", results, re.MULTILINE) for name in CLAIMS]
    found = "".join(line.group() for line in lines if line is not None)
    return head + re.sub(r"<br>[^|]* \|$", " |", found.replace("](#", "](results/RESULTS.md#"), flags=re.MULTILINE)


def goals(results: str) -> str:
    """The figures that a fold is to reach."""
    return re.search(r"(?<=Figures to reach\n\n)(?:\|.*\n)+", results).group()


PAGES = {"README.md": claims, "docs/fold.md": goals}


def with_results(page: str, made: str) -> str:
    """A page with what was made for it between its marks."""
    return BLOCK.sub(lambda _: made, page)


if __name__ == "__main__":
    for name, make in PAGES.items():
        path = ROOT / name
        path.write_text(with_results(path.read_text(), make((ROOT / "results/RESULTS.md").read_text())))
