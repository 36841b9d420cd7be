"""Prediction: one by one or together, over orderings, of long sets."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from anyorder.checks import InputError
from anyorder.data.sets import SetData
from anyorder.training.predict import predict
from trainings import Watch, model, ragged, sums, trained


def test_predict_is_one_by_one_whatever_the_batches_and_leaves_each_module_in_its_own_mode():
    subject, data = model(dropout=0.5), ragged(30)
    subject.train().encoder.eval()
    modes = [module.training for module in subject.modules()]
    together = predict(subject, data, batch_size=7)
    assert [module.training for module in subject.modules()] == modes
    with pytest.raises(InputError, match="must have 1 features"):
        predict(subject, SetData.of([np.ones((2, 3))]))
    assert [module.training for module in subject.modules()] == modes
    subject.eval()
    for i in range(len(data)):
        alone = subject(*data.batch([i]))
        torch.testing.assert_close(together[i], alone[0], atol=1e-6, rtol=1e-5)


def test_predict_averages_over_orderings():
    subject, data = model().eval(), sums(5)
    g = torch.Generator().manual_seed(0)
    many = predict(subject, data, orderings=400, generator=g)
    x = data.elements.view(5, 5, 1)
    exact = torch.stack([subject(x[:, list(order)]).detach() for order in permutations(range(5))]).mean(0)
    torch.testing.assert_close(many, exact, atol=0.01, rtol=0)
    assert (predict(subject, data) - exact).abs().max() > 0.02
    doubled = predict(subject, data, orderings=400, generator=torch.Generator().manual_seed(0), finish=lambda o: 2 * o)
    torch.testing.assert_close(doubled, 2 * many)


def test_long_sets_are_read_in_small_batches():
    even, ragged = Watch(), Watch()
    predict(even, SetData.of(torch.ones(10, 40_000, 1)))
    predict(ragged, SetData.of([torch.ones(n, 1) for n in (1, 100_000, 2, 90_000)]))
    assert max(batch.numel() for batch in even.seen + ragged.seen) <= 2**17
    assert sum(batch.numel() for batch in even.seen) == 400_000


def test_validation_is_weighted_as_its_sets_are():
    held = sums(seed=1)
    weights = torch.linspace(0, 3, 48)
    subject, result = trained(sums(), validation=SetData.of(held, weights=weights), epochs=1)
    losses = (predict(subject, held)[:, 0] - held.targets).square()
    assert result.best_validation == pytest.approx(float((losses * weights).sum() / weights.sum()), rel=1e-5)
    scalar = trained(sums(), validation=SetData.of(held, weights=weights), epochs=1, loss=F.mse_loss)[1]
    assert scalar.best_validation == pytest.approx(float(losses.mean()), rel=1e-4)
