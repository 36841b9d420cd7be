"""Run the pages that show outputs: ``python docs/site/outputs.py [--write]``.

On such a page a block of code is followed by a ``text`` block with what the code prints. Without ``--write`` an output
that is no longer true is an error. Numbers may differ by 20 %, and the numbers of epochs and sets by anything:
machines round differently.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
CHANCE = re.compile(r"(epoch|of|set) \d+")
NOT_RUN = ("pip install",)  # what the environment that runs this already did


def pages() -> list[Path]:
    """The pages that show an output."""
    return [page for page in sorted(DOCS.glob("*.md")) if "\n```\n\n```text\n" in page.read_text()]


def run(kind: str, code: str, names: dict[str, object]) -> str:
    """What a block prints; Python blocks of a page share their names."""
    if kind == "python":
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, "a block", "exec"), names)
        return printed.getvalue()
    if code.startswith(NOT_RUN):
        return ""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-ec", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": path})
    assert done.returncode == 0, f"{code} ended with {done.returncode}"
    return done.stdout


def agree(shown: str, printed: str) -> bool:
    """Whether two outputs have the same words, and numbers at most 20 % apart."""
    shown, printed = (CHANCE.sub(r"\1", text) for text in (shown, printed))
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(abs(float(one) - float(two)) <= 0.2 * abs(float(one)) + 0.05 for one, two in pairs)


def rerun(page: Path, write: bool) -> list[str]:
    """Run a page; return what is no longer true, or write it."""
    names: dict[str, object] = {"__name__": page.stem}
    wrong: list[str] = []

    def follow(block: re.Match[str]) -> str:
        kind, code, shown = block.groups()
        printed = run(kind, code, names)
        if shown is None:
            return block.group()
        if not write and not agree(shown, printed):
            wrong.append(f"{page.name} shows\n{shown}\nand its code prints\n{printed}")
        return f"```{kind}\n{code}```\n\n```text\n{printed.rstrip()}\n```\n" if write else block.group()

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        text = BLOCK.sub(follow, page.read_text())
    if write:
        page.write_text(text)
    return wrong


def main(write: bool) -> None:
    for page in pages():
        if wrong := rerun(page, write):
            sys.exit("\n".join(wrong))
        print(f"{page.name}: the outputs are true", flush=True)


if __name__ == "__main__":
    main("--write" in sys.argv)
