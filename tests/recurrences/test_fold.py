"""Fold: the theorems of docs/fold.md, and the two ways to scan."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import anyorder as ao
from anyorder.checks import InputError, InputTypeError
from anyorder.recurrences.kernels import fold as kernel

EVERY = {"affine": 5, "product": 2, "sum": 2, "max": 3, "maxplus": 2}
SMOOTH = {"affine": 5, "product": 2, "sum": 2, "max": 3}
NAN = float("nan")


def fold(channels: Any = None, layers: int = 1, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> ao.Fold:
    """A fold of 3 features whose coefficients vary much from element to element."""
    torch.manual_seed(1)
    module = ao.Fold(3, channels or EVERY, layers=layers, width=8).to(dtype)
    with torch.no_grad():
        for linear in module.coefficients:
            linear.weight.normal_(0, scale)
            linear.bias.normal_(0, scale)
    return module


def sets(*sizes: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return ao.pad([torch.randn(size, 3, generator=generator).to(dtype) for size in sizes], value=NAN)


def constant(module: ao.Fold, **coefficients: float) -> ao.Fold:
    """``module`` with coefficients that are the same for every element."""
    kinds = module.channels
    theta, b, beta, alpha = (coefficients.get(name, 0.0) for name in ("theta", "b", "beta", "alpha"))
    values = (
        [theta] * kinds.middle.stop
        + [b] * (kinds.affine + kinds.sum)
        + [beta] * kinds.greatest
        + [alpha] * kinds.maxplus
    )
    with torch.no_grad():
        module.coefficients[0].weight.zero_()
        module.coefficients[0].bias.copy_(torch.tensor(values))
    return module


def linear_in_element(rows: dict[str, list[float]], **channels: int) -> ao.Fold:
    """A fold whose θ, b and β are given linear functions of one feature in [0, 1]."""
    module = ao.Fold(1, channels, width=2).double()
    columns = [*rows.get("theta", []), *rows.get("b", []), *rows.get("beta", [])]
    with torch.no_grad():
        module.features[0].weight.copy_(torch.tensor([[1.0], [0.0]]))
        module.features[0].bias.zero_()
        module.coefficients[0].weight.zero_()
        module.coefficients[0].weight[:, 0] = torch.tensor(columns)
        module.coefficients[0].bias.zero_()
    return module


def orderings(x: Tensor) -> Tensor:
    return torch.stack([x[list(order)] for order in itertools.permutations(range(len(x)))])


def swap_gap(r: ao.Recurrence, x: Tensor, i: int, j: int) -> Tensor:
    """The squared gap of each component, at a state of no importance."""
    state = torch.randn(1, r.start(1).shape[1], dtype=x.dtype)
    a, b = x[i : i + 1], x[j : j + 1]
    return (r.step(b, r.step(a, state)) - r.step(a, r.step(b, state))).square()[0]


@pytest.mark.parametrize("layers", [1, 2])
def test_the_scan_is_the_step_repeated_and_reads_no_padding(layers: int) -> None:
    r, (x, lengths) = fold(EVERY, layers), sets(4, 0, 2, 3, 1)
    t = r.scan(x, lengths)
    for row, n in enumerate(lengths.tolist()):
        state = r.start(1)
        for i in range(n):
            state = r.step(x[row : row + 1, i], state)
            torch.testing.assert_close(t.at(torch.full((5,), i + 1))[row : row + 1], state)
        torch.testing.assert_close(t.last[row : row + 1], state)
    torch.testing.assert_close(t.output, t.last if layers == 1 else t.last[:, -1])


@pytest.mark.parametrize(("channels", "layers"), [(EVERY, 1), (EVERY, 2), (SMOOTH, 1)])  # the last: states made anew
def test_gradients_pass_gradcheck(channels: dict[str, int], layers: int) -> None:
    r, (x, lengths) = fold(channels, layers), ao.pad([torch.randn(n, 3, dtype=torch.float64) for n in (3, 0, 2, 4)])
    law = ao.SIRE(relative=False)

    def states(x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        t = r.scan(x, lengths)
        return t.states, law(t, generator=torch.Generator().manual_seed(0))

    assert torch.autograd.gradcheck(states, [x.requires_grad_(), *r.parameters()])


@pytest.mark.parametrize("kept", [kernel.KEPT, 0])
def test_blocks_of_steps_give_what_one_block_gives(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 steps of 40 sets do not fit a block; what is not kept is computed again."""
    monkeypatch.setattr(kernel, "KEPT", kept)
    r, x = fold(EVERY), torch.randn(40, 1000, 3, dtype=torch.float64).mul_(0.1).requires_grad_()
    whole = r.scan(x).last
    middle = r.scan(x[:, 400:], state=r.scan(x[:, :400]).last).last
    torch.testing.assert_close(whole, middle)
    probe = torch.linspace(0, 1, whole.numel(), dtype=torch.float64).view_as(whole)
    one, other = (torch.autograd.grad((end * probe).sum(), x)[0] for end in (whole, middle))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kept", [kernel.KEPT, 0])
def test_sums_over_blocks_of_ragged_sets_give_the_sum_over_pairs(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """order_bound² = N Σ det goes by running sums in double precision, and not by blocks."""
    monkeypatch.setattr(kernel, "KEPT", kept)
    r, (x, lengths) = fold(SMOOTH), sets(*[1000] * 3, *[600] * 40, 7, 2)
    pairs = (lengths * (lengths - 1)).double() / 2
    one = ao.SIRE(relative=False, reduction="none")(r, x.requires_grad_(), lengths)
    other = r.order_bound(x, lengths).square() / pairs.square()
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    found = (torch.autograd.grad(value.sum(), [x, *r.coefficients.parameters()]) for value in (one, other))
    torch.testing.assert_close(*found, rtol=1e-7, atol=1e-12)


def test_vmap_and_a_compiled_training_step_agree_with_the_loop() -> None:
    r, x = fold(SMOOTH), torch.randn(4, 7, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(vmap(lambda one: r.scan(one[None]).last[0])(x), r.scan(x).last)

    def loss(x: Tensor) -> Tensor:
        t = r.scan(x)
        return t.last.square().sum() + ao.SIRE()(t)

    value, compiled = loss(x), torch.compile(loss, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(compiled, value)
    torch.testing.assert_close(torch.autograd.grad(compiled, x), torch.autograd.grad(value, x))


def test_a_ragged_batch_under_vmap_agrees_with_the_loop() -> None:
    r, (x, lengths) = fold(EVERY), sets(5, 2, 4)
    shift = torch.zeros(2, dtype=torch.float64)
    mapped = vmap(lambda s: r.scan(torch.where(torch.isnan(x), x, x + s), lengths).last)(shift)
    torch.testing.assert_close(mapped[1], r.scan(x, lengths).last)


@pytest.mark.parametrize("theta", [0.0, math.pi, math.pi / 2, 2.0])
def test_zero_and_negative_coefficients_are_exact_over_10_000_steps(theta: float) -> None:
    r = constant(fold({"affine": 1, "product": 1, "max": 1}), theta=theta, b=1.0, beta=0.5)
    x = torch.randn(2, 10_000, 3, dtype=torch.float64, requires_grad=True)
    last = r.scan(x).last
    a = 1 - 2 * math.sin(theta / 2) ** 2
    total = sum(a**k for k in range(10_000)) if abs(a) < 1 else (10_000.0 if a == 1 else 0.0)
    torch.testing.assert_close(last, torch.tensor([[a**10_000, total, 0.5]] * 2, dtype=torch.float64))
    last.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in r.parameters())


def test_long_sets_of_random_coefficients_have_finite_gradients() -> None:
    r = fold(EVERY, layers=2, dtype=torch.float32)
    r.scan(torch.randn(2, 10_000, 3)).last.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in r.parameters())


# The penalty
@pytest.mark.parametrize("window", [None, 1, 2])
@pytest.mark.parametrize("tied", [False, True])
def test_the_closed_form_is_the_mean_over_the_pairs_of_the_law(window: int | None, tied: bool) -> None:
    r, (x, lengths) = fold(SMOOTH), sets(5, 0, 2, 6, 1)
    times = torch.tensor([[0, 0, 0, 1, 1, 0], [9] * 6, [4, 4, 0, 0, 0, 0], [1, 2, 2, 3, 5, 5], [0] * 6])
    options: dict[str, Any] = {"ties": True} if tied else {}
    law = ao.SIRE(window=window, relative=False, reduction="none", **options)
    values = law(r, x, lengths, **({"ties": times} if tied else {}))
    for row, n in enumerate(lengths.tolist()):
        time = times[row].tolist() if tied else list(range(n))
        if window is None and not tied:
            weight = {(i, j): 1.0 for i in range(n) for j in range(n) if i != j}
        else:
            weight = pairs_of(time[:n], window or 0)
        total = sum(weight.values())
        assert law.counts[row] == (total > 0)
        expected = sum((w * swap_gap(r, x[row], *pair).sum() for pair, w in weight.items()), torch.tensor(0.0))
        torch.testing.assert_close(
            values[row], torch.as_tensor(expected / max(total, 1e-9), dtype=torch.float64), rtol=1e-10, atol=1e-10
        )


def pairs_of(time: list[int], window: int) -> dict[tuple[int, int], float]:
    """The law in words: an element, then a partner of its time or of one at most ``window`` distinct times later."""
    distinct, weight = sorted(set(time)), {}
    for i, mine in enumerate(time):
        place = distinct.index(mine)
        near = distinct[place : place + window + 1]
        partners = [j for j, other in enumerate(time) if j != i and other in near]
        k = time.count(mine)
        share = 1.0 if len(near) > 1 else (k - 1) / k
        for j in partners:
            weight[i, j] = share / len(partners)
    return weight


@pytest.mark.parametrize("options", [{}, {"window": 2}, {"ties": True}, {"ties": True, "window": 1}])
def test_draws_of_the_same_law_have_the_closed_form_as_their_mean(options: dict[str, Any]) -> None:
    """of= takes the draws, and the whole state the closed form."""
    r, (x, lengths) = fold(SMOOTH), sets(5, 2, 6, 1)
    call = (
        {"ties": torch.tensor([[0, 0, 0, 1, 1, 0], [4] * 6, [1, 2, 2, 3, 5, 5], [0] * 6])} if "ties" in options else {}
    )
    exact = ao.SIRE(relative=False, **options)(r, x, lengths, **call)
    drawn = ao.SIRE(relative=False, pairs=400, of=lambda state: state, **options)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        values = torch.stack([drawn(r, x, lengths, generator=generator, **call) for _ in range(20)])
    assert abs(values.mean() - exact) < 4 * values.std() / math.sqrt(20)


@pytest.mark.parametrize("autocast", [False, True])
def test_single_precision_keeps_three_digits_where_the_determinant_nearly_vanishes(autocast: bool) -> None:
    """b is close to κ·c: the naive difference of products has no correct digit."""
    r = linear_in_element({"theta": [2.0], "b": [0.0]}, affine=1).float()
    x = torch.rand(8, 30, 1, generator=torch.Generator().manual_seed(0))
    c = 2 * torch.sin(2.0 * x.double() / 2).square()
    with torch.no_grad():  # b = x is close to κ c for x near 1
        x, r.coefficients[0].weight[1, 0] = 1 - 1e-3 * x, 1.0
    c = 2 * torch.sin(x.double()).square()
    exact = 2 * ((c * c).sum(1) * (x.double() ** 2).sum(1) - (c * x.double()).sum(1) ** 2)[:, 0] / (30 * 29)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        value = ao.SIRE(relative=False, reduction="none")(r.scan(x))
        window = ao.SIRE(relative=False, window=29, reduction="none")(r, x)
    assert exact.max() < 1e-6
    torch.testing.assert_close(value.double(), exact, rtol=1e-3, atol=0)
    assert torch.isfinite(window).all()


def test_zero_penalty_means_one_end_state_for_all_orderings() -> None:
    """A sum (c ≡ 0), a product around κ = ½ (parity), a product and a maximum: all 720 orderings of six elements."""
    r = linear_in_element(
        {"theta": [math.pi, 0.0, math.pi], "b": [1.0, 1.0, 1.0], "beta": [1.0]}, product=1, affine=2, sum=1, max=1
    )
    bits = torch.tensor([[1.0], [0.0], [1.0], [1.0], [0.0], [1.0]], dtype=torch.float64)
    x = orderings(bits)
    assert ao.SIRE()(r, torch.stack([bits, 1 - bits])) < 1e-12
    ends = r.scan(x).last
    torch.testing.assert_close(ends, ends[:1].expand_as(ends))
    torch.testing.assert_close(ends[0], torch.tensor([1.0, 4.0, 4 % 2, 4.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize("hostile", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_the_bound_holds_for_every_pair_of_orderings(hostile: bool, tied: bool) -> None:
    r = fold(EVERY, scale=3.0 if hostile else 0.3)
    for n in (2, 3, 5):
        x = torch.randn(n, 3, dtype=torch.float64) * (10.0 if hostile else 1.0)
        times = torch.tensor([0, 0, 1, 1, 1][:n])
        every = [o for o in itertools.permutations(range(n)) if not tied or torch.equal(times[list(o)], times)]
        ends = r.scan(torch.stack([x[list(o)] for o in every])).last
        bound = r.order_bound(x[None], ties=times[None] if tied else None)[0]
        assert torch.cdist(ends, ends).max() <= bound * (1 + 1e-9) + 1e-9


def test_the_bound_is_nearly_attained() -> None:
    """Two elements: the only gap is |g|, and the bound is √(1 · det) = |g|."""
    r, x = fold({"affine": 1}), torch.randn(1, 2, 3, dtype=torch.float64)
    gap = (r.scan(x).last - r.scan(x.flip(1)).last).abs().item()
    assert r.order_bound(x).item() == pytest.approx(gap)


def test_upper_layers_and_maxplus_channels_are_sampled_and_the_rest_is_exact() -> None:
    r, x = fold(EVERY, layers=2), torch.randn(4, 6, 3, dtype=torch.float64)
    law = ao.SIRE(relative=False)
    values = {law(r, x, generator=torch.Generator().manual_seed(seed)).item() for seed in range(4)}
    assert len(values) == 4
    exact = fold(SMOOTH)
    assert len({law(exact, x, generator=torch.Generator().manual_seed(seed)).item() for seed in range(4)}) == 1


# Bad input
@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"channels": 0}, InputError, "channels"),
        ({"channels": {}}, InputError, "channels"),
        ({"channels": {"affine": 0}}, InputError, "channels"),
        ({"channels": {"affin": 3}}, InputError, "affine"),
        ({"channels": {"affine": 2.5}}, InputTypeError, "affine"),
        ({"layers": 0}, InputError, "layers"),
        ({"width": 0}, InputError, "width"),
    ],
)
def test_a_fold_that_cannot_be_is_refused(arguments: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        ao.Fold(3, **arguments)


@pytest.mark.parametrize(
    ("use", "error", "named"),
    [
        (lambda: ao.Fold(3).scan(torch.zeros(2, 4, 2)), InputError, "elements"),
        (lambda: ao.Fold(3).scan(torch.zeros(2, 4, 3, dtype=torch.float64)), InputTypeError, "elements"),
        (lambda: ao.Fold(3).scan(torch.full((2, 4, 3), 3e38)), InputError, "elements"),  # states that overflow
        (lambda: ao.Fold(3, layers=2).order_bound(torch.zeros(2, 4, 3)), InputError, "layers"),
    ],
)
def test_what_a_fold_cannot_read_is_refused(use: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        use()
