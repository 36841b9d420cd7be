"""Ties and windows by enumeration of every pair, and closed forms of a recurrence of one's own."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anyorder as ao
from anyorder.checks import InputError
from problems import expected_tied_sire, make

NAN = float("nan")
TIMES = [[0, 0, 0, 2, 2], [7], [1, 3, 3, 4, 9, 9], [5, 5], [1, 2, 3]]
RUNS = torch.tensor([[*time, *[0] * (6 - len(time))] for time in TIMES])


def ragged() -> tuple[list[Tensor], Tensor, Tensor]:
    sets = [torch.randn(len(time), 2, dtype=torch.float64) for time in TIMES]
    return sets, *ao.pad(sets, value=NAN)


@pytest.mark.parametrize("window", [None, 1, 2])
@pytest.mark.parametrize("name", ["gru", "own-dict"])
def test_the_mean_of_many_draws_is_the_enumerated_law_of_each_set(name: str, window: int | None) -> None:
    r, (sets, elements, lengths) = make(name), ragged()
    penalty = ao.SIRE(ties=True, window=window, relative=False, pairs=500, reduction="none")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        draws = torch.stack([penalty(r, elements, lengths, ties=RUNS, generator=generator) for _ in range(40)])
    expected = [expected_tied_sire(r, x, time, window or 0) for x, time in zip(sets, TIMES, strict=True)]
    assert penalty.counts.tolist() == [int(each is not None) for each in expected]
    assert 1 in penalty.counts
    assert 0 in penalty.counts
    for each, drawn in zip(expected, draws.T, strict=True):
        error = drawn.std() / math.sqrt(len(drawn))
        assert abs(drawn.mean() - (each or 0.0)) <= 4 * error + 1e-12
        assert error <= 0.05 * (each or 0.0)


@pytest.mark.parametrize("window", [None, 1])
def test_the_accidental_order_within_a_tie_does_not_change_the_law_of_what_commutes_elsewhere(window: Any) -> None:
    """The last element is kept, the others add up: only pairs with the last one matter."""
    r = ao.recurrence(lambda e, s: torch.cat([s[:, :1] + e, e], 1), start=torch.zeros(1, 2, dtype=torch.float64))
    x, time = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)[:, None], [0, 0, 0, 1]
    values = {round(expected_tied_sire(r, x[[*order, 3]], time, window or 0), 9) for order in ((0, 1, 2), (2, 0, 1))}
    assert len(values) == 1
    penalty = ao.SIRE(ties=True, window=window, relative=False, pairs=4000)
    for order in ((0, 1, 2), (2, 0, 1)):
        value = penalty(r, x[[*order, 3]][None], ties=torch.tensor([time]), generator=torch.Generator().manual_seed(0))
        assert value.item() == pytest.approx(values.copy().pop(), rel=0.1)


@pytest.mark.parametrize("pass_is_repeatable", [True, False])
def test_reused_and_recomputed_states_of_ties_agree(pass_is_repeatable: bool) -> None:
    r, (_, elements, lengths) = make("gru"), ragged()
    for window in (None, 1):
        penalty = ao.SIRE(ties=True, window=window, pairs=30)
        t = r.scan(elements, lengths)
        t.repeatable = pass_is_repeatable
        value = penalty(t, ties=RUNS, generator=torch.Generator().manual_seed(1))
        expected = penalty(r, elements, lengths, ties=RUNS, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(value, expected)


def test_ties_may_be_times_and_what_stands_in_their_padding_is_not_read() -> None:
    r, (_, elements, lengths) = make("gru"), ragged()
    times = RUNS.double() / 7
    times[torch.arange(6) >= lengths[:, None]] = NAN
    values = [
        ao.SIRE(ties=True)(r, elements, lengths, ties=ties, generator=torch.Generator().manual_seed(0))
        for ties in (RUNS, times)
    ]
    assert torch.isfinite(values[0])
    assert values[0] == values[1]


def test_one_tie_of_all_elements_is_every_pair_and_no_tie_is_none() -> None:
    r, elements = make("gru"), torch.randn(3, 4, 2, dtype=torch.float64)
    penalty = ao.SIRE(ties=True, reduction="none")
    assert (penalty(r, elements, ties=torch.zeros(3, 4)) > 0).all()
    assert penalty(r, elements, ties=torch.arange(4).expand(3, -1)).tolist() == [0.0] * 3
    assert penalty.counts.tolist() == [0] * 3


GRU, X = nn.GRU(2, 4, batch_first=True), torch.randn(3, 5, 2)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: ao.SIRE(ties=True, prefixes="random"), "prefixes"),
        (lambda: ao.SIRE(ties=True, partners="batch"), "partners"),
        (lambda: ao.SIRE(window=1, prefixes="random"), "prefixes"),
        (lambda: ao.SIRE(ties=True)(GRU, X), "ties"),
        (lambda: ao.SIRE()(GRU, X, ties=torch.zeros(3, 5)), "ties"),
        (lambda: ao.SubsetPenalty()(GRU, X, ties=torch.zeros(3, 5)), "ties"),
        (lambda: ao.SIRE(ties=True)(GRU, X, ties=torch.zeros(3, 4)), "ties"),
        (lambda: ao.SIRE(ties=True)(GRU, X, ties=torch.tensor([[0, 1, 0, 2, 2]] * 3)), "ties"),
        (lambda: ao.SIRE(ties=True)(GRU, X, ties=torch.tensor([[0, NAN, 1, 2, 2]] * 3)), "ties"),
        (lambda: ao.order_gap(GRU, X, ties=torch.zeros(5)), "ties"),
    ],
)
def test_contradictions_and_bad_ties_get_one_clear_error(call, named: str) -> None:
    with pytest.raises(InputError, match=named):
        call()


class Leaky(ao.Recurrence):
    """A recurrence of one's own: the first half of the state is affine and has a closed form, the rest has none."""

    def __init__(self, closed: bool) -> None:
        super().__init__(torch.zeros(1, 4, dtype=torch.float64))
        self.maps, self.closed = nn.Linear(2, 6).double(), closed

    def coefficients(self, element: Tensor) -> tuple[Tensor, ...]:
        return self.maps(element).sigmoid().split(2, -1)

    def step(self, element: Tensor, state: Tensor) -> Tensor:
        c, b, mixed = self.coefficients(element)
        linear, rest = state.chunk(2, 1)
        return torch.cat([(1 - c) * linear + b, torch.tanh(2 * rest + mixed)], 1)

    def closed_form_gap(self, trajectory: ao.Trajectory, pairs: Any) -> tuple[Tensor, Tensor] | None:
        if not self.closed:
            return None
        inside = (torch.arange(trajectory.elements.shape[1]) < trajectory.counts[:, None])[:, :, None]
        c, b, _ = (each * inside for each in self.coefficients(trajectory.elements.nan_to_num()))
        exact = pairs.mean_squared_gap(c, b)
        return torch.cat([exact, torch.full_like(exact, NAN)], 1), torch.tensor([True, True, False, False])


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("options", [{}, {"prefixes": "given"}, {"window": 2}, {"ties": True}])
def test_a_closed_form_of_ones_own_covers_its_part_and_draws_cover_the_rest(options, relative: bool) -> None:
    _, elements, lengths = ragged()
    call: Any = {"ties": RUNS} if "ties" in options else {}
    torch.manual_seed(1)
    closed = Leaky(True)
    drawn = Leaky(False)
    drawn.load_state_dict(closed.state_dict())

    def draws(r: ao.Recurrence, of: Any, number: int, pairs: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        law = ao.SIRE(relative=relative, of=of, pairs=pairs, **options)
        with torch.no_grad():
            return torch.stack([law(r, elements, lengths, generator=generator, **call) for _ in range(number)])

    mixed, sampled = draws(closed, None, 60, 20), draws(drawn, None, 60, 200)
    error = math.sqrt(mixed.var() / 60 + sampled.var() / 60)
    assert 0 < abs(mixed.mean() - sampled.mean()) <= 4 * error
    rest = draws(closed, lambda state: state[:, 2:], 60, 20)
    share = 0.5 if relative else 1.0  # a mean over the components, or their sum
    assert (mixed - share * rest).std() < 1e-12 < mixed.std()  # the exact part does not vary


def test_gradients_flow_through_both_parts_of_a_closed_form() -> None:
    r, (_, elements, lengths) = Leaky(True), ragged()
    ao.SIRE()(r, elements, lengths).backward()
    assert torch.isfinite(r.maps.weight.grad).all()
    assert (r.maps.weight.grad.abs().sum(1) > 0).all()
