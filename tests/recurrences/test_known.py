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


def test_a_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match="hidden"):
        known.TwoLayerReLUCell(1, 1, 0)
