"""Models on the Hugging Face Hub: the folder of :func:`anyorder.save` with a card, downloaded without running code."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import huggingface_hub

import anyorder
from anyorder.checks import InputTypeError
from anyorder.deploy.save import open_model, save
from anyorder.files import CARD, CONFIG, WEIGHTS, write_atomically

_FIGURES = {  # of an audit, and their names on the card
    "order_gap": "order gap (0: order is ignored; near 1: it matters as content does)",
    "output_gap": "mean change of the output in another order",
    "flip_rate": "share of classes that change in another order",
    "excess_flip_rate": "the same, less the noise of reading again",
    "worst_gap": "largest change of the output found",
    "accuracy": "accuracy, in the given order",
    "accuracy_shuffled": "accuracy, in random orders",
    "rmse": "RMSE, in the given order",
    "rmse_shuffled": "RMSE, in random orders",
}


def save_pretrained(
    model: Any, path: str | os.PathLike[str], *, report: Any = None, repo_id: str | None = None, **about: Any
) -> None:
    """Write a set model, a fitted estimator or a ``TableModel`` as a folder with a model card, ``README.md``.

    Args:
        model: What :func:`anyorder.save` takes, or a :class:`anyorder.TableModel`.
        path: The folder. A model that is there is replaced, with its card.
        report: An :func:`anyorder.audit` of the model. Its figures stand on the card.
        repo_id: The name on the Hub, ``"user/name"``, for the example on the card.
        about: Metadata of the card, such as ``license="mit"`` or ``datasets=["user/data"]``.

    >>> import tempfile, torch, anyorder as ao
    >>> model, folder = ao.DeepSets(3, 2), Path(tempfile.mkdtemp()) / "model"
    >>> report = ao.audit(model, torch.randn(20, 5, 3), orderings=4)
    >>> ao.save_pretrained(model, folder, report=report, license="mit")
    >>> ao.from_pretrained(folder)(torch.randn(4, 5, 3)).shape
    torch.Size([4, 2])
    """
    if not (report is None or hasattr(report, "worst_gap")):
        raise InputTypeError(f"report must be what anyorder.audit returns for one model; got {type(report).__name__}")
    if type(model).__name__ == "TableModel":
        model.save(path)
    else:
        save(model, path)
    write_atomically(Path(path) / CARD, _card(Path(path), report, repo_id or Path(path).name, about))


def from_pretrained(
    name: str | os.PathLike[str], *, revision: str | None = None, token: str | None = None, cache_dir: Any = None
) -> Any:
    """The model, in eval mode, the estimator or the ``TableModel`` of a folder or of a repository on the Hub.

    Only ``config.json`` and ``model.safetensors`` are downloaded, and neither can run code.

    Args:
        name: A folder, or ``"user/name"`` on the Hub.
        revision: A branch, a tag or a commit of the repository. A commit gives the same model for ever.
        token: For private repositories. By default the one that ``hf auth login`` stored.
        cache_dir: Folder of downloads. By default that of huggingface_hub.

    >>> import tempfile, anyorder as ao
    >>> ao.save_pretrained(ao.DeepSets(3, 2), folder := tempfile.mkdtemp())
    >>> ao.from_pretrained(folder).name
    'deepsets'
    """
    folder = Path(name)
    if not folder.is_dir():
        wanted = {"revision": revision, "token": token, "cache_dir": cache_dir, "allow_patterns": [CONFIG, WEIGHTS]}
        folder = Path(huggingface_hub.snapshot_download(str(name), **wanted))
    saved = open_model(folder)
    if saved.preprocessing and "table" in saved.preprocessing:
        return anyorder.TableModel.load(folder)
    return saved.model if saved.estimator is None else saved.estimator


def push_to_hub(
    model: Any,
    repo_id: str,
    *,
    report: Any = None,
    private: bool | None = None,
    message: str = "A model of anyorder",
    token: str | None = None,
    **about: Any,
) -> str:
    """Upload a model with its card, and return the address of the commit.

    The repository is made if there is none. Log in first: ``hf auth login``.

    Args:
        model, report, about: As in :func:`anyorder.save_pretrained`.
        repo_id: The name on the Hub, ``"user/name"``.
        private: Whether a new repository is private. By default as your organisation has it.
        message: The message of the commit.
        token: By default the one that ``hf auth login`` stored.

    >>> push_to_hub(anyorder.DeepSets(3, 2), "user/name")  # doctest: +SKIP
    """
    api = huggingface_hub.HfApi(token=token, library_name="anyorder", library_version=anyorder.__version__)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder, report=report, repo_id=repo_id, **about)
        api.create_repo(repo_id, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message))


def _card(folder: Path, report: Any, repo_id: str, about: dict[str, Any]) -> str:
    """The card of a model folder, with the figures of an audit."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    tags = ["anyorder", "sets", "permutation-invariance", *about.pop("tags", [])]
    data = huggingface_hub.ModelCardData(library_name="anyorder", tags=tags, **about)
    model, kept = config["model"], config["preprocessing"] or {}
    name = model["config"].get("model", model["name"])  # of a standardised model, the one inside
    call = "predict(table)" if "table" in kept else "predict(sets)"
    lines = [
        *["---", data.to_yaml(), "---", "", f"# {repo_id}", ""],
        *[f"A model of sets: `{name}` of anyorder {config['anyorder_version']}.", ""],
        *["```python", "import anyorder as ao  # pip install 'anyorder[all]'", ""],
        *[
            f'model = ao.from_pretrained("{repo_id}")',
            f"model{'.' + call if config['estimator'] else '(elements, lengths)'}",
        ],
        *["```", "", "## Does order matter to it?", ""],
    ]
    if report is None:
        lines += ["It was not audited. `ao.audit(model, sets)` measures it.", ""]
    else:
        lines += [report.verdict()[1], "", f"Measured on {report.sets} sets in {report.orderings} orderings each.", ""]
        figures = {words: getattr(report, name) for name, words in _FIGURES.items()}
        figures |= {f"{words}_ci": getattr(report, f"{name}_ci", None) for name, words in _FIGURES.items()}
        lines += _table({"value": figures})
    if kept.get("held_out"):
        lines += [f"## On {kept['held_out']['sets']} sets held out from training", ""]
        lines += _table(kept["held_out"]["metrics"])
    lines += ["## Arguments", "", "```json", json.dumps(model["config"], indent=2), "```", ""]
    return "\n".join(lines)


def _table(columns: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Figures side by side, each with the interval that stands under its name and ``_ci``."""
    first = next(iter(columns.values()))
    lines = [f"| with 95 % intervals | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for name in [name for name, value in first.items() if value is not None and not name.endswith("_ci")]:
        cells = []
        for figures in columns.values():
            value, ci = figures[name], figures.get(f"{name}_ci")
            cells.append(f"{value:.4g}" if ci is None else f"{value:.4g} [{ci[0]:.4g}, {ci[1]:.4g}]")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]
