"""order_gap: outputs of models and recurrences, several draws, ties, and the error of its value."""

import math
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyorder as ao
from anyorder.checks import InputError
from problems import make


def last_element(elements: Tensor, lengths: Tensor | None = None) -> Tensor:
    counts = torch.full((len(elements),), elements.shape[1]) if lengths is None else lengths
    return elements[torch.arange(len(elements)), counts - 1]


class ReadsTheLast(nn.Module):
    def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
        return last_element(elements, lengths)


@pytest.mark.parametrize("subject", [ReadsTheLast(), ao.recurrence(lambda e, s: 0 * s + e, torch.zeros(1, 1))])
def test_one_ordering_of_what_reads_the_last_element_has_a_known_gap(subject: Any) -> None:
    """Two elements 0 and v: swapped with probability ½, which moves the output by v."""
    v = torch.tensor([1.0, 2.0, 4.0])
    elements = torch.stack([torch.zeros(3), v], 1)[:, :, None]
    gap = ao.order_gap(subject, elements, draws=20_000, generator=torch.Generator().manual_seed(0))
    assert gap.value == pytest.approx(math.sqrt(0.5 * v.square().mean() / (2 * v.var())), rel=0.02)
    assert float(gap) == gap.value == gap
    assert f"{gap:.3f}" == f"{gap.value:.3f}"


@pytest.mark.parametrize("name", ["gru", "lstm-2-layers"])
def test_the_gap_of_a_module_is_that_of_its_output(name: str) -> None:
    r, (elements, lengths) = make(name), ao.pad([torch.randn(n, 2, dtype=torch.float64) for n in (5, 3, 4, 1)])

    class Read(nn.Module):
        def forward(self, elements: Tensor, lengths: Tensor | None = None) -> Tensor:
            return r.scan(elements, lengths).output

    gaps = [ao.order_gap(s, elements, lengths, generator=torch.Generator().manual_seed(0)) for s in (r, Read())]
    assert gaps[0] == gaps[1] > 0
    assert gaps[0].standard_error == pytest.approx(gaps[1].standard_error)


def test_more_draws_move_around_the_same_value() -> None:
    model, elements = ao.RecurrentSetModel(2, 1), torch.randn(50, 6, 2)
    generator = torch.Generator().manual_seed(0)
    single, many = ([ao.order_gap(model, elements, draws=d, generator=generator) for _ in range(30)] for d in (1, 16))
    squares = [[gap**2 for gap in gaps] for gaps in (single, many)]
    means, spreads = [statistics.mean(s) for s in squares], [statistics.stdev(s) for s in squares]
    assert spreads[1] < spreads[0] / 2.5
    assert abs(means[0] - means[1]) < 4 * math.hypot(*spreads) / math.sqrt(30)


def test_within_ties_only_the_elements_of_a_tie_are_reordered() -> None:
    elements = torch.tensor([[[1.0], [2.0], [5.0]], [[3.0], [3.5], [9.0]]])
    last_alone, first_alone = torch.tensor([[0, 0, 1]] * 2), torch.tensor([[0, 1, 1]] * 2)
    generator = torch.Generator().manual_seed(0)
    assert ao.order_gap(ReadsTheLast(), elements, ties=last_alone, draws=20, generator=generator) == 0
    gap = ao.order_gap(ReadsTheLast(), elements, ties=first_alone, draws=20_000, generator=generator)
    assert gap == pytest.approx(math.sqrt(0.5 * (3**2 + 5.5**2) / 2 / (2 * 8)), rel=0.02)


@pytest.mark.parametrize("spread_of_sets", [0.0, 1.0])
def test_the_standard_error_covers_the_spread_over_repeated_draws_of_sets(spread_of_sets: float) -> None:
    """Sets of various scales, so that few of them dominate the gap."""
    r, generator = make("gru", torch.float32), torch.Generator().manual_seed(0)
    gaps = []
    for _ in range(300):
        scale = torch.exp(spread_of_sets * torch.randn(40, 1, 1, generator=generator))
        gaps.append(ao.order_gap(r, scale * torch.randn(40, 5, 2, generator=generator), generator=generator))
    truth = statistics.stdev(gaps)
    assert 0.8 < statistics.mean(gap.standard_error for gap in gaps) / truth < 1.3
    centre = statistics.mean(gaps)
    covered = sum(abs(gap - centre) < 2 * gap.standard_error for gap in gaps) / len(gaps)
    assert covered > 0.9


def test_the_standard_error_is_that_of_leaving_out_one_set_at_a_time() -> None:
    """Two draws from one generator state are the same orderings of each set, whatever the other sets are."""
    elements = torch.randn(6, 2, 1, dtype=torch.float64)
    ties = torch.arange(2).expand(6, -1)
    swapped = elements.flip(1)

    def gap(rows: list[int]) -> float:
        outputs = elements[rows, -1, 0]
        moved = (swapped[rows, -1, 0] - outputs).square()
        return math.sqrt(moved.mean() / (2 * outputs.var()))

    class Swaps(nn.Module):
        """Reads a set as it is the first time, and swapped the second."""

        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return (elements if self.calls == 1 else swapped)[:, -1]

    found = ao.order_gap(Swaps(), elements, ties=ties)
    assert found == pytest.approx(gap(list(range(6))))
    without = [gap([i for i in range(6) if i != out]) for out in range(6)]
    centre = statistics.mean(without)
    assert found.standard_error == pytest.approx(math.sqrt(5 / 6 * sum((w - centre) ** 2 for w in without)))


def test_a_model_is_read_in_eval_mode_without_gradients_and_left_as_it_was() -> None:
    model, elements = ao.RecurrentSetModel(2, 1, dropout=0.5).train(), torch.randn(4, 5, 2)
    gaps = {ao.order_gap(model, elements, generator=torch.Generator().manual_seed(0)).value for _ in range(3)}
    assert len(gaps) == 1
    assert model.training
    assert ao.order_gap(ao.DeepSets(2, 1), elements) < 1e-5


@pytest.mark.parametrize(
    ("options", "named"), [({"draws": 0}, "draws"), ({"elements": torch.zeros(1, 4, 2)}, "elements")]
)
def test_bad_input_gets_one_clear_error(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        ao.order_gap(**{"subject": nn.GRU(2, 3, batch_first=True), "elements": torch.zeros(3, 4, 2), **options})
