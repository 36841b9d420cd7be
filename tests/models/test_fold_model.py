"""RecurrentSetModel(cell="fold"): the read-out of states without bound, presets, and what the penalty is for."""

import pytest
import torch
from torch import Tensor

import anyorder as ao
from anyorder.models import FOLD_PRESETS


def numbers(sets: int, top: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randint(0, top, (sets, 10, 1), generator=generator).float()
    return (x - (top - 1) / 2) / (top / 4), x.sum(1)


def right_after_30_labels(weight: float) -> float:
    """The share of right sums of ten numbers below 20, learnt from 30 sets."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    (x, y), (unseen, truth) = numbers(30, 20, generator), numbers(1000, 20, generator)
    unit, model, penalty = y.std(), ao.RecurrentSetModel(1, 1, cell="fold", **FOLD_PRESETS["sums"]), ao.SIRE()
    optimizer, steps = torch.optim.Adam(model.parameters()), 1500
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
    for _ in range(steps):
        out, trajectory = model(x, return_trajectory=True)
        loss = (out - (y - y.mean()) / unit).square().mean() + weight * penalty(trajectory)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return float(((model(unseen) * unit + y.mean()).round() == truth).float().mean())


@pytest.mark.slow
def test_the_penalty_makes_thirty_labels_enough() -> None:
    assert right_after_30_labels(80.0) > 0.95
    assert right_after_30_labels(0.0) < 0.6


@pytest.mark.parametrize("preset", FOLD_PRESETS)
def test_every_preset_trains_saves_and_streams(preset: str, tmp_path) -> None:
    torch.manual_seed(0)
    model = ao.RecurrentSetModel(3, 2, cell="fold", **FOLD_PRESETS[preset])
    x, lengths = ao.pad([torch.randn(n, 3) for n in (5, 0, 3, 4)])
    model.train()(x, lengths).square().mean().backward()
    model.eval()
    ao.save(model, tmp_path / "model")
    again, stream = ao.load(tmp_path / "model"), ao.Stream(model)
    torch.testing.assert_close(again(x, lengths), model(x, lengths))
    stream.update(x[0, :5])
    torch.testing.assert_close(stream.value(), model(x, lengths)[0], rtol=1e-5, atol=1e-5)


def test_the_units_of_the_states_are_those_of_the_first_batch_in_training_and_then_fixed() -> None:
    torch.manual_seed(0)
    model = ao.RecurrentSetModel(3, 1, cell="fold", channels={"sum": 4, "product": 2}, layers=2)
    x = torch.randn(64, 6, 3)
    before = model.eval()(x)
    model.train()(x)
    fitted = model.eval()(x)
    assert not torch.allclose(before, fitted)
    model.train()(100 * x)
    torch.testing.assert_close(model.eval()(x), fitted)
    other = ao.RecurrentSetModel(3, 1, cell="fold", channels={"sum": 4, "product": 2}, layers=2)
    other.load_state_dict(model.state_dict())
    other.train()(100 * x)
    torch.testing.assert_close(other.eval()(x), fitted)
    z = model.readout.head.standardise(model.recurrence.output(model.recurrence.scan(x).last))
    torch.testing.assert_close(z[:, 2:].mean(0), torch.zeros(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(z[:, 2:].std(0), torch.ones(4), atol=1e-3, rtol=0)


def test_the_bilinear_read_out_multiplies_two_combinations_of_the_states() -> None:
    model = ao.RecurrentSetModel(1, 1, cell="fold", channels={"sum": 2}, bilinear=1).eval()
    head = model.readout.head
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.factors.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        head.product.weight.fill_(3.0)
    state = torch.tensor([[2.0, 5.0], [-1.0, 4.0]])
    torch.testing.assert_close(model.readout(state)[:, 0], torch.tensor([30.0, -12.0]))


def test_settled_channels_add_up_without_a_bound_on_the_length() -> None:
    torch.manual_seed(0)
    fold = ao.Fold(1, {"product": 2, "affine": 6, "max": 1})
    with torch.no_grad():
        fold.coefficients[0].weight[7] *= 100  # the last affine channel is far from a sum
    x = torch.rand(8, 5, 1)
    assert fold.settle(x) == 5
    c = fold.coefficients_of(x.flatten(0, 1)).c
    assert (c[:, 2:7] == 0).all()
    assert (c[:, :2] > 0).any()
    assert (c[:, 7] > 0.1).any()
    many = x[:1].expand(1, 5, 1).repeat(1, 200, 1)
    torch.testing.assert_close(fold.scan(many).last[0, 2:7], 200 * fold.scan(x[:1]).last[0, 2:7], rtol=1e-4, atol=1e-3)
