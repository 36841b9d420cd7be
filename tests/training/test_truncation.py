"""Truncated backpropagation: windows of a set, and their gradient."""

from __future__ import annotations

import pytest
import torch

import anyorder as ao
from anyorder.training.batches import pieces
from trainings import SGD, flat, model, ragged, sums, trained


def test_pieces_cover_each_sample_once_in_order_and_end_at_its_end():
    data = ragged()
    elements, lengths = data.batch(torch.arange(len(data)))
    for size in (2, 3, 5, 20):
        rebuilt: list[list[float]] = [[] for _ in range(len(data))]
        ends = []
        for part, sizes, is_last in pieces(elements, lengths, size):
            ends.append(is_last)
            assert part.shape[1] <= size
            for sample, n in enumerate(sizes.tolist()):
                rebuilt[sample] += part[sample, :n, 0].tolist()
        assert ends == [False] * (len(ends) - 1) + [True]
        assert torch.equal(sizes, lengths.clamp(max=size))
        assert rebuilt == [elements[i, :n, 0].tolist() for i, n in enumerate(lengths.tolist())]


def test_a_window_longer_than_the_samples_changes_nothing():
    data = ragged()
    for penalty, weight in [(None, 0.0), (ao.SIRE(prefixes="given", window=1, relative=False), 2.0)]:
        whole, a = trained(data, penalty=penalty, penalty_weight=weight)
        windowed, b = trained(data, penalty=penalty, penalty_weight=weight, truncate=10)
        torch.testing.assert_close(flat(whole), flat(windowed), atol=1e-6, rtol=1e-5)
        assert a.history[-1]["loss"] == pytest.approx(b.history[-1]["loss"], rel=1e-5)


def test_the_truncated_gradient_is_that_of_the_last_window_with_the_state_before_it_held_constant():
    data = ragged(16)
    subject, _ = trained(data, truncate=3, **SGD)
    by_hand = model()
    loss = torch.zeros(())
    for i in range(len(data)):  # one by one, nothing padded
        x = data.elements[data.offsets[i] : data.offsets[i + 1]][None]
        cut = max(0, x.shape[1] - 3)
        state = by_hand.recurrence.start(1)
        if cut:
            state = by_hand.recurrence.scan(x[:, :cut]).last.detach()
        end = by_hand.recurrence.scan(x[:, cut:], state=state).last if x.shape[1] else state
        loss = loss + (by_hand.readout(end)[0, 0] - data.targets[i]).square() / len(data)
    loss.backward()
    for p, q in zip(by_hand.parameters(), subject.parameters(), strict=True):
        torch.testing.assert_close(p.detach() - 0.1 * p.grad, q.detach(), atol=1e-6, rtol=1e-4)


def test_windows_of_two_penalise_each_adjacent_pair_of_the_window():
    """With n = 4 and windows of 2 the adjacent swap is certain: the penalty is the mean of both windows' swaps."""
    data = sums(6, length=4)
    swap = ao.SIRE(prefixes="given", window=1, relative=False)
    _, result = trained(data, penalty=swap, penalty_weight=1e-12, truncate=2, epochs=1, clip=None, learning_rate=1e-12)
    subject, x = model(), data.elements.view(6, 4, 1)
    middle = subject.recurrence.scan(x[:, :2]).last
    gaps = []
    for state, pair in [(subject.recurrence.start(6), x[:, :2]), (middle, x[:, 2:])]:
        ends = [subject.recurrence.scan(p, state=state).last for p in (pair, pair.flip(1))]
        gaps.append((ends[0] - ends[1]).square().sum(1).mean().item())
    assert result.history[0]["penalty"] == pytest.approx(sum(gaps) / 2, rel=1e-4)
