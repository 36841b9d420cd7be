"""What the documentation shows is run; what it links to is there."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from anyorder.cli.app import app, main

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
# The blocks of a page run one after another, as a reader runs them; pages that mix them with commands, elsewhere.
RUN_ELSEWHERE = {"tables.md": "cli/test_cli.py", "recipes.md": "project/test_recipes.py"}
SCRIPTS = {
    page.name: "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))
    for page in PAGES
    if page.name not in RUN_ELSEWHERE
}
CODE = re.compile(r"^```sh\n(.*?)^```|`([^`\n]+)`", re.M | re.S)  # blocks of commands, and code inside a line
COMMANDS = sorted(
    {
        (page.name, command)
        for page in PAGES
        for code in CODE.finditer(page.read_text())
        for command in re.findall(r"^(?:\$ )?anyorder ([a-z]+.*)$", code.group(1) or code.group(2), re.M)
    }
)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_pages_and_examples_import_at_most_one_package_below_anyorder() -> None:
    deep = re.compile(r"^\s*(?:from|import) anyorder\.\w+\.\w.*", re.M)
    assert [line for page in [*PAGES, *EXAMPLES] for line in deep.findall(page.read_text())] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", [name for name, script in SCRIPTS.items() if script])
def test_every_python_block_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("page.py").write_text(SCRIPTS[page])
    runpy.run_path("page.py")


def test_pages_run_elsewhere_are_read_there() -> None:
    for page, test in RUN_ELSEWHERE.items():
        assert page in (ROOT / "tests" / test).read_text(), f"{test} does not read {page}"


def test_the_experiment_of_the_page_on_extending_runs_resumes_and_has_a_page(tmp_path, monkeypatch, capsys) -> None:
    assert len(SCRIPTS["extend.md"].splitlines()) <= 40
    (tmp_path / "leaky.py").write_text(SCRIPTS["extend.md"])
    reproduce, report = re.findall(r"^anyorder (.*leaky:LEAKY.*?) +#", (ROOT / "docs/extend.md").read_text(), re.M)
    command = [sys.executable, "-P", "-m", "anyorder", *reproduce.split()]  # -P: as the command, not here
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert (done.returncode, "10 trials finished" in done.stdout) == (0, True), done.stderr
    monkeypatch.chdir(tmp_path)
    for words, said in ((reproduce, "0 of 10 trials"), (report, "wrote mine")):
        monkeypatch.setattr(sys, "argv", ["anyorder", *words.split()])
        with pytest.raises(SystemExit, match=r"^0$"):
            main()
        assert said in capsys.readouterr().out
    assert "SIRE helps a leaky cell to add." in (tmp_path / "mine" / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.delenv("ANYORDER_DATA", raising=False)  # generated data: the real ones take minutes
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip(), "an example shows something"


def test_every_link_leads_somewhere() -> None:
    found = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)#]+)", page.read_text())]
    inside = [(page, target) for page, target in found if "://" not in target]
    assert [(page.name, target) for page, target in inside if not (page.parent / target).exists()] == []


def test_every_documented_command_exists() -> None:
    known = get_command(app)
    with pytest.raises(Exception, match="--onx"):  # what does not exist is noticed
        parse(known.commands["export"], ["model", "--onx", "model.onnx"])
    for page, words in COMMANDS:
        command, *options = shlex.split(words, comments=True)
        assert command in known.commands, f"{page} shows `anyorder {command}`, which is no command"
        if options:  # a name alone is a mention
            parse(known.commands[command], options)
    assert set(known.commands) <= {words.split()[0] for _, words in COMMANDS}, "every command is documented"


def parse(command: Any, options: list[str]) -> None:
    """Read a command's words as the command line does, without running it; what it does not know is an error."""
    if hasattr(command, "commands"):
        assert options[0] in command.commands, options
        parse(command.commands[options[0]], options[1:])
        return
    try:
        command.make_context(command.name, list(options))
    except typer.BadParameter as error:
        if "does not exist" not in str(error):  # the reader's table does not
            raise


def test_every_command_shows_an_example_that_it_reads() -> None:
    commands = get_command(app).commands
    for name, command in {**commands, **commands["data"].commands}.items():
        if name != "data":
            assert (command.epilog or "").startswith("Example:  anyorder "), name
            _, shown, *words = shlex.split(command.epilog.removeprefix("Example:"))
            assert name in (shown, *words), name
            parse(commands[shown], words)


def test_every_line_of_the_paper_map_names_tests_that_exist() -> None:
    lines = [line for line in (ROOT / "docs" / "paper.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert len(lines) >= 16
    for line in lines:
        what, *_, tested_in = line.strip("| ").split(" | ")
        places = re.findall(r"`(tests/[\w/.]+)`", tested_in)
        assert places, what
        assert all((ROOT / place).exists() for place in places), what


def test_what_pages_copy_from_the_results_is_up_to_date() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from copy_results import CLAIMS, PAGES, with_results
    finally:
        sys.path.pop(0)
    results = (ROOT / "results/RESULTS.md").read_text()
    for name, make in PAGES.items():
        page = (ROOT / name).read_text()
        assert with_results(page, make(results)) == page, "make results"
        assert with_results(page, "other") != page
    assert [name for name in CLAIMS if f"results/RESULTS.md#{name})" not in (ROOT / "README.md").read_text()] == []


def test_every_page_stands_in_the_navigation_of_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f" {page.name}\n" not in navigation] == []
