"""Rows in one process: the oracle."""

import numpy as np
import pytest
import torch

from edl.nn import (
    FTRL,
    LAMB,
    Embedding,
    GroupAdam,
    Lion,
    LocalRows,
    RowWiseAdagrad,
    attach,
    torch_optimizer,
)
from edl.nn.initializers import initial_rows
from edl.nn.optimizers import OPTIMIZERS
from edl.ps.rows.optimizers import make_rule
from edl.ps.rows.table import Table


def test_first_values_are_those_of_the_servers():
    table, rows = Embedding("t", 4, scale=0.3), LocalRows(seed=7)
    attach(table, rows)
    ids = torch.tensor([[9, -4], [9, 2**62]])

    expected = initial_rows(7, table.spec, ids.numpy().ravel()).reshape(2, 2, 4)

    np.testing.assert_array_equal(table(ids).detach().numpy(), expected)


def test_no_ids_give_no_rows():
    table = Embedding("t", 4)
    attach(table, LocalRows())

    assert table(torch.zeros((3, 0), dtype=torch.int64)).shape == (3, 0, 4)


def test_only_the_rows_of_the_batch_have_a_gradient():
    table, rows = Embedding("t", 2), LocalRows()
    attach(table, rows)
    table(torch.tensor([1, 2, 3]))

    table(torch.tensor([2, 2])).sum().backward()

    assert len(rows.parameters()) == 3
    assert [p.grad.tolist() for p in rows.parameters() if p.grad is not None] == [[2.0, 2.0]]
    assert rows.table("t")[2].grad is not None


def test_new_parameters_are_told_once():
    table, rows = Embedding("t", 2), LocalRows()
    attach(table, rows)
    table(torch.tensor([1, 2]))
    assert len(rows.new_parameters()) == 2
    table(torch.tensor([2, 3]))

    assert rows.new_parameters() == [rows.table("t")[3]]


def test_training_rows_equals_training_a_matrix_with_sgd():
    table, rows = Embedding("t", 3), LocalRows(seed=1)
    attach(table, rows)
    matrix = torch.nn.Embedding(5, 3)
    matrix.weight.data = torch.from_numpy(initial_rows(1, table.spec, np.arange(5)))
    optimizers = [torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)]
    optimizers.append(torch.optim.SGD(matrix.parameters(), lr=0.5))
    for step in range(4):
        ids = torch.tensor([step % 5, (2 * step) % 5, step % 5])
        losses = [module(ids).square().sum() for module in (table, matrix)]
        optimizers[0].param_groups[0]["params"] += rows.new_parameters()
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    for i, row in rows.table("t").items():
        torch.testing.assert_close(row.data, matrix.weight.data[i])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_spec_has_an_optimizer_that_lowers_a_loss(name):
    spec = OPTIMIZERS[name](**({"momentum": 0.9} if name == "SGD" else {}))
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = torch_optimizer(spec, [weight])
    before = weight.square().sum().item()
    for _ in range(3):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()

    assert weight.square().sum().item() < before


def test_ftrl_follows_algorithm_1():
    """McMahan et al. 2013, algorithm 1, by hand for one coordinate with l1 and l2."""
    lr, beta, l1, l2, w, n, z = 0.5, 1.0, 0.1, 0.2, 0.3, 0.0, 0.0
    weight = torch.nn.Parameter(torch.tensor([w], dtype=torch.float64))
    optimizer = torch_optimizer(FTRL(lr, beta, l1, l2), [weight])
    for g in (1.0, -0.25, 0.5):
        weight.grad = torch.tensor([g], dtype=torch.float64)
        optimizer.step()
        sigma = ((n + g * g) ** 0.5 - n**0.5) / lr
        z, n = z + g - sigma * w, n + g * g
        w = 0.0 if abs(z) <= l1 else -(z - np.sign(z) * l1) / ((beta + n**0.5) / lr + l2)

        assert weight.item() == pytest.approx(w, rel=1e-12)


@pytest.mark.parametrize(
    "spec",
    [
        RowWiseAdagrad(0.1, weight_decay=0.1, lr_decay=0.1),
        LAMB(0.05, weight_decay=0.1),
        GroupAdam(0.05, l1=3.0, l21=30.0),
        Lion(0.05, weight_decay=0.1, maximize=True),
    ],
)
def test_rows_in_one_process_are_those_of_the_servers(spec):
    table, rows, rng = Embedding("t", 5, scale=1.0), LocalRows(seed=1), np.random.default_rng(0)
    attach(table, rows)
    table(torch.arange(6))
    optimizer = torch_optimizer(spec, rows.new_parameters())
    servers = Table(table.spec, 1, make_rule(spec))

    for _ in range(10):
        ids = np.sort(rng.permutation(6)[:4])
        grads = rng.normal(size=(4, 5)).astype(np.float32)
        servers.apply(ids, grads, spec.lr)
        optimizer.zero_grad(set_to_none=True)
        for i, grad in zip(ids.tolist(), grads, strict=True):
            rows.table("t")[i].grad = torch.from_numpy(grad.copy())
        optimizer.step()

    ours = torch.stack([rows.table("t")[i].data for i in range(6)])
    np.testing.assert_allclose(servers.pull(np.arange(6)), ours, rtol=1e-4, atol=1e-5)
