"""Run the notebooks of docs/notebooks: ``python docs/site/notebooks.py [NAME …]``.

Each becomes build/notebooks/NAME.md with its pictures, and NAME.ipynb to download. A notebook that fails, takes more
than three minutes of one core, or shows a picture without an alternative text (``alt="…"`` in its cell's first line)
is an error.
"""

import os
import re
import resource
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

HERE = Path(__file__).parent.parent / "notebooks"
BUILT = Path(__file__).parents[2] / "build" / "notebooks"
SECONDS = 180


def build(names: list[str] | None = None) -> None:
    BUILT.mkdir(parents=True, exist_ok=True)
    for path in sorted(HERE.glob("*.py")):
        if not names or path.stem in names:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            convert(path)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(f"{path.name}: {seconds:.0f} s", flush=True)
            assert seconds < SECONDS, f"{path.name} took more than {SECONDS} s of one core"


def convert(path: Path) -> None:
    notebook = jupytext.read(path)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "IPYTHONDIR": tempfile.mkdtemp(),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=10 * SECONDS, coalesce_streams=True, resources=where).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for warning in [output for output in cell.get("outputs", []) if output.get("name") == "stderr"]:
            print(f"{path.name}: {warning['text']}", file=sys.stderr)
            cell.outputs.remove(warning)
        pictures = sum("image/png" in output.get("data", {}) for output in cell.get("outputs", []))
        assert pictures <= 1, f"{path.name}: a cell shows at most one picture"
        assert not pictures or cell.metadata.get("alt"), f'{path.name}: give this cell alt="…":\n{cell.source}'
    nbformat.write(notebook, BUILT / f"{path.stem}.ipynb")
    text, resources = MarkdownExporter().from_notebook_node(notebook, {"unique_key": path.stem})
    text = re.sub(r"<style scoped>.*?</style>\n?", "", text, flags=re.DOTALL)
    for name, content in resources["outputs"].items():
        (BUILT / name).write_bytes(content)
    for name, cell in zip(resources["outputs"], (c for c in notebook.cells if c.metadata.get("alt")), strict=True):
        text = text.replace(f"![png]({name})", f"![{cell.metadata['alt']}]({name})")
    end = text.index("\n", text.index("# "))
    offer = f"\n\n*Made by running [this notebook]({path.stem}.ipynb); download it to run it yourself.*"
    (BUILT / f"{path.stem}.md").write_text(text[:end] + offer + text[end:])


if __name__ == "__main__":
    build(sys.argv[1:])
