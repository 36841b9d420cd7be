"""The project keeps its own rules: who imports whom, what stays light, what every name carries."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import anyorder as ao
from anyorder import _names
from anyorder.cli.resume import Run
from anyorder.estimators.base import PENALTIES
from anyorder.files import home
from anyorder.models import MODELS
from anyorder.paper.data.sources import cache_folder
from anyorder.paper.experiments import EXPERIMENTS, GROUPS
from anyorder.paper.runner.sweep import _workdir
from anyorder.paper.runner.trial import Trial
from anyorder.training.loop import OPTIMIZERS

SOURCE = Path(ao.__file__).parent
ROOT = Path(__file__).parents[2]
FILES = [p for p in sorted(SOURCE.rglob("*.py")) if p.name != "__init__.py"]


def test_importing_the_package_and_its_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys, anyorder, anyorder.cli.app; print([m for m in ('torch', 'pandas', 'sklearn') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_the_names_the_command_line_knows_are_those_of_the_library() -> None:
    assert {*_names.MODELS} == {*MODELS} - {"standardised", "cnn", "pyg"}
    assert {*_names.PENALTIES} == {*PENALTIES}
    assert {*_names.OPTIMIZERS} == {*OPTIMIZERS}
    assert {"synthetic": list(_names.SYNTHETIC), "real": list(_names.REAL)} == GROUPS
    assert {*_names.SYNTHETIC, *_names.REAL} == {*EXPERIMENTS}
    assert tuple(GROUPS) == _names.GROUPS
    assert {scale for experiment in EXPERIMENTS.values() for scale in experiment.plans} == {*_names.SCALES}


@pytest.mark.parametrize("name", [n for n in ao.__all__ if n != "__version__"])
def test_every_public_name_loads_and_says_what_it_is(name: str) -> None:
    assert getattr(ao, name).__doc__, f"anyorder.{name} has no docstring"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'anyorder' has no attribute 'SIER'"):
        ao.SIER  # noqa: B018


def test_the_tests_have_a_home_of_their_own() -> None:
    assert home().name.startswith("anyorder-tests-")


def test_downloads_and_unfinished_runs_share_one_home(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ANYORDER_HOME", "~/kept")
    trial = Trial("e", "m", {}, seed=0, scale="smoke")
    folders = cache_folder(), _workdir(trial), Run(tmp_path, tmp_path / "out", {}).folder
    assert [folder.relative_to(tmp_path).parts[:2] for folder in folders] == [
        ("kept", "data"),
        ("kept", "trials"),
        ("kept", "runs"),
    ]


def test_every_package_that_is_imported_is_declared_pinned_and_explained() -> None:
    names = {"sklearn": "scikit-learn", "torch_geometric": "torch-geometric"}
    trees = [ast.walk(ast.parse(path.read_text())) for path in FILES]
    nodes = [node for tree in trees for node in tree]
    modules = [a.name for node in nodes if isinstance(node, ast.Import) for a in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    imported = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - {"anyorder"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(w for extra in project["optional-dependencies"].values() for w in extra)]
    declared = {re.match(r"[\w-]+", requirement)[0] for requirement in wanted}
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    page = (ROOT / "docs" / "dependencies.md").read_text()
    for package in {names.get(name, name) for name in imported}:
        assert package in declared, f"{package} is imported but pyproject.toml does not declare it"
        assert package in pinned, f"{package} is imported but constraints.txt does not pin it"
        assert package in page, f"{package} is imported but docs/dependencies.md does not say why"
