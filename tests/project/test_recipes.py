"""docs/recipes.md: every block is run, and what it promises is checked."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anyorder as ao

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
BLOCK = {name: next(b for b in BLOCKS if name in b) for name in (
    "import anyorder", "def accumulate", "def share_of_loss", "class MambaBlock", "def collate",
    "class SetModule", "class SetNet", "class WithLoss",
)}  # fmt: skip


def run(*names: str) -> dict[str, Any]:
    """What the imports and these blocks define."""
    defined: dict[str, Any] = {"__name__": "recipes"}
    for name in ("import anyorder", *names):
        exec(BLOCK[name], defined)
    return defined


def test_every_block_of_the_page_is_run_here() -> None:
    assert sorted(BLOCK.values()) == sorted(BLOCKS)


@pytest.mark.parametrize(
    ("r", "sizes"),
    [
        (ao.Fold(3, {"affine": 8, "max": 4}), [[4, 0, 2], [1, 7, 3], [5]]),  # its penalty is exact
        (ao.recurrence(nn.GRU(3, 12, batch_first=True)), [[2, 0, 2], [1, 2, 2], [2]]),  # one pair a set
    ],
    ids=["fold", "gru"],
)
def test_accumulated_gradients_are_those_of_the_full_batch(r: ao.Recurrence, sizes: list[list[int]]) -> None:
    accumulate, r, head = run("def accumulate")["accumulate"], r.double(), nn.Linear(12, 1).double()
    weights = [*r.parameters(), *head.parameters()]
    sets = [[torch.randn(n, 3, dtype=torch.float64) for n in part] for part in sizes]
    parts = [(*ao.pad(part), torch.randn(len(part), 1, dtype=torch.float64)) for part in sets]
    elements, lengths = ao.pad([x for part in sets for x in part])
    targets = torch.cat([y for *_, y in parts])

    def gradients() -> list[Tensor]:
        found = [w.grad.clone() for w in weights]
        r.zero_grad()
        head.zero_grad()
        return found

    trajectory = r.scan(elements, lengths)
    (F.mse_loss(head(trajectory.output), targets) + 3.0 * ao.SIRE()(trajectory)).backward()
    full = gradients()
    accumulate(r, head, parts, weight=3.0)
    torch.testing.assert_close(gradients(), full)
    for x, n, y in parts[:2]:  # what one would write without the recipe
        trajectory = r.scan(x, n)
        loss = F.mse_loss(head(trajectory.output), y, reduction="sum") / len(lengths) + ao.SIRE()(trajectory)
        loss.backward()
    assert not all(torch.allclose(a, b, rtol=0.01) for a, b in zip(gradients(), full, strict=True))


HARNESS = """
import copy, os
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = ao.RecurrentSetModel(
    3, 1, cell=ao.Fold(3, {"affine": 8, "max": 4}), readout=nn.Linear(12, 1)
).double()
alone = copy.deepcopy(model)
sets, targets = [torch.randn(n, 3).double() for n in (4, 0, 7, 2, 1, 3)], torch.randn(6, 1).double()

out, trajectory = alone(*ao.pad(sets), return_trajectory=True)
full = F.mse_loss(out, targets) + 3.0 * ao.SIRE()(trajectory)
full.backward()

ddp, mine = DistributedDataParallel(model), slice(3 * rank, 3 * rank + 3)
share = share_of_loss(ddp, ao.SIRE(reduction="none"), *ao.pad(sets[mine]), targets[mine], 3.0)
share.backward()
total = share.detach().clone()
dist.all_reduce(total)
torch.testing.assert_close(total / 2, full.detach())
for one, other in zip(model.parameters(), alone.parameters(), strict=True):
    torch.testing.assert_close(one.grad, other.grad)
part = ao.SIRE()(alone, *ao.pad(sets[mine]))
assert abs(part - ao.SIRE()(alone, *ao.pad(sets))) > 0.01 * part, "a part's own value is another"
print("equal")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_with_ragged_sets_have_the_gradients_of_the_full_batch(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(BLOCK["import anyorder"] + BLOCK["def share_of_loss"] + HARNESS)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run([sys.executable, *launch], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal") == 2


def test_the_mamba_block_is_short_and_its_inputs_are_left_out() -> None:
    defined = run("class MambaBlock")
    body = re.search(r"^class MambaBlock.*?(?=^\S)", BLOCK["class MambaBlock"], re.M | re.S)[0]
    assert len(body.strip().splitlines()) <= 40
    defined["loss"].backward()
    block, mamba, elements, lengths = (defined[name] for name in ("block", "mamba", "elements", "lengths"))
    assert all(p.grad.isfinite().all() and p.grad.any() for p in block.parameters())
    shapes = {name: list(leaf.shape) for name, leaf in mamba.start(2).items()}
    assert shapes == {"inputs": [2, 3, 4], "ssm": [2, 3, 8]}
    state = mamba.start(1)
    for element in elements[0, : lengths[0]]:
        output, state = block(element[None], state)
    torch.testing.assert_close(mamba.scan(elements, lengths).output[0], output[0])
    with torch.no_grad():  # no decay and one tap: the ssm adds up a function of each element
        block.log_decay.fill_(-50.0)
        block.taps[:, :-1] = 0.0
    assert ao.SIRE(of="ssm")(mamba, elements, lengths) < 1e-9
    assert ao.SIRE(of="inputs")(mamba, elements, lengths) > 0.01


def test_the_penalty_of_the_mamba_block_can_be_trained_away() -> None:
    defined = run("class MambaBlock")
    mamba, sire, elements = defined["mamba"], defined["sire"], torch.randn(32, 6, 3)
    optimizer, generator = torch.optim.Adam(mamba.parameters(), lr=0.02), torch.Generator().manual_seed(0)
    values = []
    for _ in range(80):
        value = sire(mamba, elements, generator=generator)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert sum(values[-10:]) < 0.3 * sum(values[:10])


def test_a_lightning_module_adds_the_penalty_to_its_loss() -> None:
    defined = run("def collate", "class SetModule")
    lit, batch, trainer = defined["lit"], defined["collate"](defined["items"]), defined["trainer"]
    assert trainer.global_step == 4
    assert 0 < trainer.callback_metrics["order_gap"] < 10
    torch.manual_seed(0)
    loss = lit.training_step(batch, 0)
    assert_is_task_and_penalty(loss, lit.model, batch)


def test_a_skorch_net_adds_the_penalty_to_its_loss() -> None:
    defined = run("def collate", "class SetNet")
    net, batch = defined["net"], defined["collate"](defined["items"])
    sets, labels = {name: batch[name] for name in ("elements", "lengths")}, batch["labels"]
    assert [len(epoch["batches"]) for epoch in net.history] == [2, 2]
    torch.manual_seed(0)
    loss = net.get_loss(net.module_(**sets), labels, X=sets, training=True)
    assert_is_task_and_penalty(loss, net.module_, batch)
    assert net.predict(sets).shape == (16, 1)
    assert net.get_loss(net.module_(**sets), labels, X=sets) < loss


def test_a_trainer_of_hugging_face_adds_the_penalty_to_its_loss(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    defined = run("def collate", "class WithLoss")
    trainer, batch = defined["hugging_face"], defined["collate"](defined["items"])
    assert trainer.state.global_step == 4
    torch.manual_seed(0)
    assert_is_task_and_penalty(trainer.model(**batch)["loss"], trainer.model.model, batch)
    assert trainer.predict(defined["items"]).predictions.shape == (16,)
    assert not list(tmp_path.rglob("*.bin"))


def assert_is_task_and_penalty(loss: Tensor, model: nn.Module, batch: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    penalty = ao.SIRE()(model, batch["elements"], batch["lengths"])
    task = F.mse_loss(model(batch["elements"], batch["lengths"])[:, 0], batch["labels"])
    assert penalty > 0
    torch.testing.assert_close(loss, task + penalty)
