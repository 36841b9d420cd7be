"""What mkdocs does not do by itself: the API pages, links out of docs/, formulas, notebooks, names that are links."""

import importlib
import inspect
import re
import sys
from pathlib import Path
from posixpath import join, normpath
from typing import Any

import latex2mathml.converter
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

import anyorder as ao

ROOT = Path(__file__).parents[2]
SOURCE = "https://github.com/anyorder/anyorder/blob/main/"
sys.path.insert(0, str(Path(__file__).parent))
from notebooks import BUILT, build  # noqa: E402

PULLED = {  # files of the repository that are pages of the site too
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "results/RESULTS.md": "results.md",
}
PICTURES = [str(path.relative_to(ROOT)) for path in (ROOT / "results").rglob("*.png")]
# Page -> its title, a sentence, and the names on it. Every public name stands on one page; on_config sees to that.
API = {
    "penalties": (
        "Penalties",
        "What to add to a loss. `penalty(model, elements, lengths)` reads `elements [B, T, D]` and `lengths [B]`.",
        """penalties.SIRE penalties.SubsetPenalty penalties.PermutationPenalty penalties.Penalty
        penalties.AdaptiveWeight penalties.order_gap.order_gap penalties.order_gap.OrderGap
        penalties.penalty_from_config""",
    ),
    "recurrences": (
        "Recurrences",
        "A step, a start state, and the states of a scan over `elements [B, T, D]` with `lengths [B]`.",
        """recurrences.base.recurrence recurrences.base.Recurrence recurrences.trajectory.Trajectory
        recurrences.fold.Fold recurrences.known.parity recurrences.known.sum recurrences.known.max
        recurrences.known.TwoLayerReLUCell""",
    ),
    "models": (
        "Models",
        "All models share one call. `model(elements, lengths=None, *, static=None)` reads `elements [B, T, D]`, "
        "`lengths [B]` and `static [B, S]`, and gives `[B, out_features]`.",
        """models.RecurrentSetModel models.DeepSets models.SetTransformer models.MultiAggregation models.JanossyPooling
        models.pyg.SireAggregation models.pyg.penalty_of models.SetModel models.Standardised
        models.average_over_orderings models.FOLD_PRESETS models.MODELS""",
    ),
    "training": (
        "Training",
        "The training loop, and its settings.",
        "training.loop.train training.config.TrainConfig training.config.TrainResult",
    ),
    "estimators": (
        "Estimators and tables",
        "Models of tables, and estimators of scikit-learn's kind.",
        """estimators.table_model.TableModel estimators.classifier.SetClassifier estimators.regressor.SetRegressor
        estimators.tables.read_table estimators.tables.Table""",
    ),
    "audits": (
        "Audits and proofs",
        "Whether order matters to any predictor, and proofs that it does not.",
        """audits.run.audit audits.report.Report audits.report.Comparison verify.certify.certify verify.certify.Proof
        verify.assertions.assert_order_invariant verify.assertions.assert_padding_invariant
        verify.assertions.assert_chunking_invariant""",
    ),
    "deploy": (
        "Save, share and stream",
        "Model folders that cannot run code, the Hub, and sets that are still arriving.",
        """deploy.save.save deploy.save.load deploy.hub.save_pretrained deploy.hub.from_pretrained
        deploy.hub.push_to_hub deploy.stream.Stream""",
    ),
    "plot": (
        "Pictures",
        "Each function draws on `ax` or on a new figure, and returns matplotlib axes (extra `audit`).",
        "plot.history plot.channels plot.curve",
    ),
    "data": (
        "Sets and orderings",
        "The container of sets of different sizes, and random orderings.",
        """data.sets.SetData data.sets.pad data.orderings.random_orderings
        data.orderings.reorder data.orderings.random_partners data.orderings.random_below""",
    ),
    "checks": (
        "Errors",
        "What bad input raises.",
        "checks.InputError checks.InputTypeError checks.Diverged checks.finite_checks",
    ),
}
PLACES = {name.rpartition(".")[2]: f"anyorder.{name}" for *_, names in API.values() for name in names.split()}
MODULES = ("checks", "known", "orderings", "plot", "pyg", "testing")  # ao.known.parity stands as parity


def on_config(config: Any) -> None:
    missing = set(ao.__all__) - {*PLACES, *MODULES, "__version__"}
    if missing:
        raise PluginError(f"docs/site/hooks.py: no API page has {sorted(missing)}")
    for name in PLACES.values():
        value = resolved(name)
        if ">>> " not in inspect.getdoc(value) and not is_made_for_you(value):
            raise PluginError(f"{name} has no example in its docstring")
    pages = next(entry for entry in config.nav if "API" in entry)
    pages["API"] = ["api/index.md", "api/command.md", *(f"api/{page}.md" for page in API)]
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [
        {"name": "math", "class": "math", "format": formula}
    ]


def resolved(path: str) -> Any:
    """The object of a dotted path, or an error that names it."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"docs/site/hooks.py: {path}: {error}") from None


def is_made_for_you(value: Any) -> bool:
    """Whether a name is what another returns or raises, so that the example stands there."""
    return isinstance(value, dict) or value.__name__ in {
        *("OrderGap", "Trajectory", "Recurrence", "TrainResult", "Table", "Report", "Comparison", "Proof"),
        *("InputError", "InputTypeError", "Diverged"),
    }


def formula(source: str, *_: Any, **__: Any) -> str:
    """A block of LaTeX as MathML, which browsers draw without a script."""
    return f'<div class="math">{latex2mathml.converter.convert(source, display="block")}</div>'


def on_files(files: Files, config: Any) -> Files:
    def add(place: str, **content: Any) -> None:
        files.append(File.generated(config, place, **content))

    for name, page in PULLED.items():
        add(page, content=relinked((ROOT / name).read_text(), name))
    for picture in PICTURES:
        add(picture, abs_src_path=ROOT / picture)
    for page, (title, what, names) in API.items():
        blocks = [f"::: anyorder.{name}\n    options:\n      heading: {called(name)}\n" for name in names.split()]
        add(f"api/{page}.md", content="\n".join([f"# {title}\n", f"{what}\n", *blocks]))
    add("api/index.md", content=index())
    add("api/command.md", content=command())
    if not BUILT.is_dir():
        build()
    for file in BUILT.iterdir():
        place = f"notebooks/{file.name}"
        text = relinked(file.read_text(), f"docs/{place}") if file.suffix == ".md" else None
        add(place, **({"content": text} if text else {"abs_src_path": file}))
    return files


def called(path: str) -> str:
    """The name by which users call what stands at a path."""
    package, _, name = path.rpartition(".")
    if name in ao.__all__:
        return f"ao.{name}"
    for module in MODULES:
        if getattr(getattr(ao, module), name, None) is resolved(f"anyorder.{path}"):
            return f"ao.{module}.{name}"
    return f"{package}.{name}" if package == "models" else name


def index() -> str:
    lines = ["# API", "", "`import anyorder as ao`. Every name has its signature, formula, shapes and an example.", ""]
    for page, (title, what, names) in API.items():
        links = ", ".join(f"[`{called(name)}`][anyorder.{name}]" for name in names.split())
        lines += [f"## [{title}]({page}.md)", "", what, "", links, ""]
    return "\n".join([*lines, "## [The command](command.md)", "", "Every command and option of `anyorder`."])


def command() -> str:
    """The help of every command, as the command line gives it."""
    import typer

    from anyorder.cli.app import app

    root = typer.main.get_command(app)
    lines = ["# The command", "", "`anyorder COMMAND --help` prints the same.", ""]

    def describe(name: str, one: Any) -> None:
        lines.extend([f"## {name}", "", (one.help or "").strip(), ""])
        if one.epilog:
            lines.extend(["```sh", one.epilog.removeprefix("Example:").strip(), "```", ""])
        rows = [option.get_help_record(typer.Context(one)) for option in one.params if option.name != "help"]
        if any(rows):
            lines.extend(["| option | meaning |", "|---|---|"])
            lines.extend(f"| `{names}` | {words.replace('|', chr(92) + '|')} |" for names, words in filter(None, rows))
            lines.append("")
        for part, child in getattr(one, "commands", {}).items():
            describe(f"{name} {part}", child)

    for name, one in root.commands.items():
        describe(name, one)
    return "\n".join(lines)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return relinked(markdown, f"docs/{page.file.src_uri}") if page.file.generated_by is None else markdown


def relinked(markdown: str, place: str) -> str:
    """Links out of docs/ lead to the pages made of those files, or to the source; a link to nothing is an error."""
    here = place.rpartition("/")[0]

    def follow(found: re.Match[str]) -> str:
        target = found.group(2)
        if "://" in target:
            return found.group()
        path = normpath(join(here, target))
        if path.startswith("docs/notebooks/") and path.endswith(".py"):
            path = path.removesuffix(".py") + ".md"
        if path.startswith("docs/") and not path.endswith(".py"):
            inside, up = path.removeprefix("docs/"), "../" * (here.count("/") if here.startswith("docs") else 0)
            return f"{found.group(1)}{up}{inside}"
        if path in PULLED:
            return f"{found.group(1)}{PULLED[path]}"
        if path in PICTURES:
            return f"{found.group(1)}{path}"
        if not (ROOT / path).exists():
            raise PluginError(f"{place} links to {target}, which is not there")
        return f"{found.group(1)}{SOURCE}{path}"

    return re.sub(r"(\]\()([^)#\s]+)", follow, markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """``ao.NAME`` in a text leads to the name's place in the API; a name that does not exist is an error."""

    def link(found: re.Match[str]) -> str:
        value, place = ao, None
        for part in found.group(2).split("."):
            value, place = getattr(value, part, None), PLACES.get(part, place)
        if value is None and found.group(1) == "ao":
            raise PluginError(f"{page.file.src_uri} names {found.group()}, which does not exist")
        return found.group() if None in (value, place) else f'<autoref identifier="{place}">{found.group()}</autoref>'

    return re.sub(r'(?<!">)<code>(ao|anyorder)\.([A-Za-z_][\w.]*\w)[^<]*</code>(?!</a>)', link, html)
