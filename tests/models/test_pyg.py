from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.pyg import PygModel
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, aggr
from torch_geometric.utils import to_dense_batch

import anyorder as ao
from anyorder.checks import InputError
from anyorder.models.pyg import SireAggregation, penalty_of

EXAMPLES = Path(__file__).parents[2] / "examples"


class Layer(MessagePassing):
    def __init__(self, aggregation: aggr.Aggregation) -> None:
        super().__init__(aggr=aggregation)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm", "relu"])
def test_each_set_is_read_alone_in_its_own_order(cell):
    aggregation = SireAggregation(3, 5, cell)
    x, index = torch.randn(6, 3), torch.tensor([2, 0, 2, 2, 0, 4])
    out = aggregation(x, index, dim_size=6)
    for group in range(6):
        own = x[index == group]
        alone = aggregation.model(own[None])[0] if len(own) else aggregation.model(torch.zeros(1, 0, 3))[0]
        torch.testing.assert_close(out[group], alone)


def test_an_index_a_pointer_and_no_index_mean_the_same():
    aggregation = SireAggregation(3, 5)
    x = torch.randn(6, 3)
    by_index = aggregation(x, torch.tensor([0, 0, 2, 2, 2, 3]))
    by_pointer = aggregation(x, ptr=torch.tensor([0, 2, 2, 5, 6]))
    torch.testing.assert_close(by_pointer, by_index)
    torch.testing.assert_close(aggregation(x), aggregation(x, torch.zeros(6, dtype=torch.int64)))
    assert aggregation(x[:0], torch.zeros(0, dtype=torch.int64), dim_size=2).shape == (2, 5)


def test_batch_mates_change_torch_geometrics_gru_but_not_ours():
    x, mate = torch.randn(2, 3), torch.randn(5, 3)
    index = torch.tensor([0, 0, 1, 1, 1, 1, 1])
    theirs, ours = aggr.GRUAggregation(3, 4), SireAggregation(3, 4)
    adapted = PygModel(3, 4, "gru", hidden=4)
    alone, both = index[:2], torch.cat([x, mate])
    assert (theirs(both, index)[0] - theirs(x, alone)[0]).abs().max() > 0.01
    torch.testing.assert_close(ours(both, index)[0], ours(x, alone)[0])
    elements, inside = to_dense_batch(both, index)
    torch.testing.assert_close(adapted(elements, inside.sum(1))[0], adapted(x[None])[0])
    torch.testing.assert_close(adapted(x[None]), adapted.rho(adapted.aggregation(x, alone)))


def test_in_a_layer_the_order_of_edges_to_other_nodes_is_nothing():
    layer = Layer(SireAggregation(3, 4))
    x = torch.randn(4, 3)
    edges = torch.tensor([[0, 1, 2, 3, 0], [1, 1, 2, 2, 3]])
    interleaved = edges[:, [0, 2, 4, 1, 3]]  # each node's own edges in the same order
    torch.testing.assert_close(layer(x, interleaved), layer(x, edges))
    assert layer(x, edges).shape == (4, 4)


def test_the_penalty_is_that_of_the_last_forward(generator):
    penalty = ao.SIRE(prefixes="given", window=1, pairs=3)
    layer = Layer(SireAggregation(3, 4, penalty=penalty))
    x, edges = torch.randn(4, 3), torch.tensor([[0, 1, 2, 3, 0], [1, 1, 2, 2, 2]])
    layer(x, edges)
    value = penalty_of(layer, generator)
    elements, inside = to_dense_batch(x[edges[0]], edges[1], batch_size=4)
    expected = penalty(layer.aggr_module.model, elements, inside.sum(1), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(value, expected)
    value.backward()
    assert all(p.grad.abs().max() > 0 for p in layer.aggr_module.model.recurrence.module.parameters())


def test_penalties_of_a_network_add_up():
    network = nn.ModuleList([SireAggregation(3, 4), SireAggregation(3, 4)])
    for aggregation in network:
        aggregation(torch.randn(4, 3), torch.tensor([0, 0, 1, 1]))
    both = torch.Generator().manual_seed(3)
    one_by_one = torch.Generator().manual_seed(3)
    torch.testing.assert_close(penalty_of(network, both), sum(a.penalty(one_by_one) for a in network))


def test_there_is_nothing_to_penalise_without_a_forward_in_training():
    aggregation = SireAggregation(3, 4)
    with pytest.raises(InputError, match="penalty"):
        aggregation.penalty()
    aggregation(torch.randn(2, 3))
    aggregation.eval()(torch.randn(2, 3))
    with pytest.raises(InputError, match="penalty"):
        aggregation.penalty()
    with pytest.raises(InputError, match="SireAggregation"):
        penalty_of(nn.Linear(1, 1))


def test_a_layer_can_be_copied_and_saved_after_a_forward_in_training(tmp_path):
    aggregation = SireAggregation(3, 4)
    x, index = torch.randn(4, 3), torch.tensor([0, 0, 1, 1])
    out = aggregation(x, index)
    torch.save(aggregation, tmp_path / "layer.pt")
    for again in (copy.deepcopy(aggregation), torch.load(tmp_path / "layer.pt", weights_only=False)):
        with pytest.raises(InputError, match="penalty"):
            again.penalty()
        torch.testing.assert_close(again(x, index), out)
    assert aggregation.penalty().requires_grad  # the layer itself still has its forward


def test_without_torch_geometric_errors_name_the_extra():
    code = """
import sys
sys.modules["torch_geometric"] = None
import anyorder as ao
try:
    ao.pyg.SireAggregation
except (ImportError, ao.checks.InputError) as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "peers" in result.stdout


def test_the_example_teaches_a_layer_to_ignore_the_order_of_its_edges(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import pyg_aggregation as example

    _, plain = example.main(penalty_weight=0.0)
    _, penalised = example.main(penalty_weight=3.0)
    assert penalised < plain / 2
