"""The project keeps its own rules: what stays light, what each part needs, what every name carries."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import anyorder as ao
from anyorder.cli.resume import Run
from anyorder.files import home
from anyorder.paper.data.sources import cache_folder

SOURCE = Path(ao.__file__).parent
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def packages(requirements: list[str]) -> set[str]:
    """The names of the packages required, without their versions."""
    return {re.match(r"[\w-]+", requirement)[0] for requirement in requirements} - {"anyorder"}


BASE = packages(PROJECT["dependencies"])
EXTRAS = {name: packages(needed) for name, needed in PROJECT["optional-dependencies"].items()}
MODULES = {  # the name by which a module is imported -> the package that brings it
    module: names[0].lower() for module, names in importlib.metadata.packages_distributions().items()
}

WITH_THE_BASE_ALONE = """
import sys
from importlib.machinery import PathFinder

class Refusing(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in {refused}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refusing)
import tempfile
import torch
from torch import nn
from torch.nn import functional as F
import anyorder as ao

x, y, head = torch.randn(8, 10, 3), torch.randn(8, 1), nn.Linear(64, 1)

gru, sire = nn.GRU(3, 64, batch_first=True), ao.SIRE()
_, h = gru(x)
loss = F.mse_loss(head(h[-1]), y)
loss = loss + 1.0 * sire(gru, x)
print(ao.order_gap(gru, x))

loss.backward()
model = ao.RecurrentSetModel(3, 2)
ao.save(model, folder := tempfile.mkdtemp() + "/model")
stream = ao.Stream(ao.load(folder).eval())
stream.update(x[0])
assert torch.allclose(stream.value(), model.eval()(x[:1])[0], atol=1e-6)
assert ao.certify(ao.known.parity(), torch.tensor([[0.0], [1.0]]), max_length=4).invariant
ao.testing.assert_order_invariant(lambda elements: elements.sum(1), x)
data = ao.SetData.of(x, torch.randn(8, 2))
for use in (lambda: ao.SetClassifier, lambda: ao.train(model, "mse", data), lambda: ao.read_table):
    try:
        use()
    except ao.checks.InputError as error:
        print(error)
"""


def test_the_base_works_where_nothing_else_can_be_imported() -> None:
    extra = set().union(*EXTRAS.values())
    refused = {module for module, package in MODULES.items() if package in extra}
    assert {"pandas", "sklearn", "scipy", "accelerate", "matplotlib", "typer"} <= refused
    assert not {"torch", "numpy", "safetensors"} & refused
    code = WITH_THE_BASE_ALONE.format(refused=refused)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    gap, *missing = done.stdout.splitlines()
    assert re.search(r"\d\.\d", gap)
    extras = [re.search(r"pip install 'anyorder\[(\w+)\]'$", line)[1] for line in missing]
    assert extras == ["tables", "train", "tables"]


def test_importing_the_package_and_its_command_line_loads_nothing_heavy() -> None:
    heavy = "('torch', 'pandas', 'sklearn')"
    code = f"import sys, anyorder, anyorder.cli.app; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_every_public_name_loads_and_says_what_it_is() -> None:
    assert [name for name in ao.__all__ if name != "__version__" and not getattr(ao, name).__doc__] == []


def test_downloads_and_unfinished_runs_share_one_home(monkeypatch, tmp_path) -> None:
    assert home().name.startswith("anyorder-tests-"), "the tests have a home of their own"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ANYORDER_HOME", "~/kept")
    assert cache_folder() == tmp_path / "kept" / "data"
    assert Run(tmp_path / "out").folder.parent == tmp_path / "kept" / "runs"


def test_every_package_that_is_imported_is_declared_pinned_and_explained() -> None:
    nodes = [node for path in SOURCE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    imported = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - {"anyorder"}
    declared = BASE.union(*EXTRAS.values())
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    page = (ROOT / "docs" / "dependencies.md").read_text()
    for package in {MODULES.get(module, module) for module in imported} | declared:
        assert package in declared, f"{package} is imported but pyproject.toml does not declare it"
        assert package in pinned, f"{package} is declared but constraints.txt does not pin it"
        assert re.search(rf"\b{package}\b", page), f"docs/dependencies.md does not say why {package} is needed"


def test_ci_installs_by_hash_what_the_constraints_pin() -> None:
    lines = (ROOT / ".github" / "requirements.txt").read_text().splitlines()
    locked = {line.rstrip(" \\").lower() for line in lines if "==" in line}
    pinned = {line.lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert pinned - locked == {line for line in pinned if line.startswith("torch==")}
    assert all(line.startswith("    --hash=sha256:") for line in lines if "==" not in line and not line.startswith("#"))
