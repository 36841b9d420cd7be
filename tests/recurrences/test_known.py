import itertools

import pytest
import torch

from anyorder.recurrences import known

ANSWERS = {
    "parity": (known.parity, 12, [0.0, 1.0], lambda x: sum(x) % 2),
    "sum": (known.sum, 6, [-3.0, 0.0, 5.0], sum),
    "max": (known.max, 12, [0.0, 2.0, 7.0], max),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_short_sequence_gets_the_right_answer(name: str) -> None:
    build, parameters, alphabet, answer = ANSWERS[name]
    r = build()
    assert sum(p.numel() for p in r.parameters()) == parameters
    for length in range(1, 6):
        sequences = list(itertools.product(alphabet, repeat=length))
        ends = r.scan(torch.tensor(sequences)[:, :, None]).last[:, 0]
        assert ends.tolist() == [answer(s) for s in sequences]


def test_parity_as_printed_in_the_paper() -> None:
    """a = 2 gives 2 − 1 − 0 = 1, a = 4 gives 4 − 3 − 1 = 0; four gates for the maximum, three for parity."""
    r = known.parity()
    one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    assert r.step(one, zero).item() == 1.0
    assert r.step(one, one).item() == 0.0
    assert known.TwoLayerReLUCell(1, 1, 3).to_state.in_features == 3


def test_a_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match="hidden"):
        known.TwoLayerReLUCell(1, 1, 0)
