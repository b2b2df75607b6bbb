"""Models of all kinds as programs: computed ids, sequences of any length, what cannot be traced."""

import numpy as np
import pytest
import torch
from torch import nn

from edl.common.errors import UsageError
from edl.data.reader import Columns
from edl.nn import Embedding
from edl.nn.initializers import initial_rows
from edl.nn.replace import prepare
from edl.serve.export_parts import held_tables
from edl.serve.features import Batches, named
from edl.serve.rows import Lookup
from edl.serve.tracing import Model

RECORDS = Columns({"n": np.arange(40)})


class First:
    """A table that was never trained: first values only."""

    def __init__(self, spec):
        self.spec = spec

    def rows(self, ids):
        return initial_rows(3, self.spec, ids)


def traced(model, feed, **tables):
    model = model.eval()
    found = {m.name: First(m.spec) for m in model.modules() if isinstance(m, Embedding)}
    return Model(model, Batches.of(feed, RECORDS), {**found, **tables})


def run(program, made, features, rows=True):
    """Return what a program answers about features, with the rows that its uses name."""
    inputs = [tensor for _, tensor in named(features)]
    by_name = dict(zip([each.name for each in made.inputs], inputs, strict=True))
    if made.computed:
        names = [made.uses[number].ids for number in made.computed]
        by_name |= zip(names, made.ids().module()(*inputs), strict=True)
    given = []
    for use in made.uses if rows else ():
        table = next(m for m in made.model.modules() if getattr(m, "name", "") == use.table)
        ids = by_name[use.ids]
        found = initial_rows(3, table.spec, ids.numpy().reshape(-1)).reshape(*ids.shape, table.dim)
        given.append(torch.from_numpy(found * (ids.numpy() != use.nothing)[..., None]))
    return program.module()(*inputs, *given)


def of(numbers):
    return torch.from_numpy(np.asarray(numbers, np.int64))


class Computes(nn.Module):
    """Ids out of a column of the features, and ids that are computed."""

    def __init__(self):
        super().__init__()
        self.rows = Embedding("rows", 3)

    def forward(self, features):
        ids, other = features
        return {"a": self.rows(ids[:, 0]).sum(1), "b": (self.rows(other), self.rows(ids * 7 + 1))}


def test_ids_that_the_model_computes_are_a_program_of_their_own():
    """Broken once: ids that are computed are taken for the feature of their shape."""

    def feed(records, mode):
        n = of(records["n"])
        return (torch.stack([n, n + 5], 1), n * 2), None

    made = traced(Computes(), feed)

    assert [":0", ":1"] == [each.path for each in made.inputs]
    assert ["ids_0", "1", "ids_2"] == [use.ids for use in made.uses]
    assert ["a", "b.0", "b.1"] == [each.name for each in made.outputs]
    features, _ = feed({"n": np.arange(3, 8)}, "predict")
    outputs = run(made.dense(), made, features)
    rows = First(made.model.rows.spec).rows
    np.testing.assert_allclose(rows(np.arange(3, 8)).sum(1), outputs[0], rtol=1e-6)
    np.testing.assert_array_equal(rows(np.arange(3, 8) * 2), outputs[1])
    assert (5, 2, 3) == outputs[2].shape


class Sequence(nn.Module):
    """Ids of any number a batch, some of which are none."""

    def __init__(self):
        super().__init__()
        self.rows = Embedding("rows", 4, combiner="mean")
        self.each = Embedding("each", 4)

    def forward(self, features):
        rows = self.each(features["seen"])
        weights = (features["seen"] >= 0).float().unsqueeze(-1)
        return (rows * weights).sum(1) + self.rows(features["seen"])


def test_a_sequence_may_have_any_length():
    """Broken once: the axis has the size that it had in the batch that was traced."""

    def feed(records, mode):
        n = np.asarray(records["n"])
        longest = int(n.max()) % 9 + 2
        seen = n[:, None] + np.arange(longest)
        return {"seen": of(np.where(seen % 4 == 0, -1, seen))}, None

    made = traced(Sequence(), feed)
    assert [(-1,)] == [each.shape for each in made.inputs]
    program = made.dense()
    for length in (2, 3, 15):
        features = {"seen": of(np.arange(5)[:, None] + np.arange(length))}
        (found,) = run(program, made, features)
        rows = [First(m.spec).rows for m in (made.model.rows, made.model.each)]
        ids = np.arange(5)[:, None] + np.arange(length)
        many = [of(ids.reshape(-1)).numpy() for _ in rows]
        mean, each = (r(m).reshape(5, length, 4) for r, m in zip(rows, many, strict=True))
        np.testing.assert_allclose(each.sum(1) + mean.mean(1), found, rtol=1e-4, atol=1e-5)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.moved = nn.Embedding(5000, 3, padding_idx=4)
        self.out = nn.Linear(3, 1)

    def forward(self, ids):
        return self.out(self.moved(ids)).squeeze(1)


def test_an_nn_embedding_that_was_moved_is_whole_inside_of_a_program():
    """Broken once: the row of padding_idx is the table's."""
    torch.manual_seed(0)
    model = Plain()
    prepare(model, 1, {"out.weight", "out.bias"})

    def feed(records, mode):
        return of(np.asarray(records["n"])).int(), None

    made = traced(model, feed)
    (use,) = made.uses
    assert ("moved", "features", 5000, 4) == (use.table, use.ids, use.size, use.nothing)
    spec = model.moved.spec
    exact = {"moved": Lookup(spec, 3, [])}
    found = type("Found", (), {"spec": type("Spec", (), {"tables": (spec,)})()})()
    held = held_tables(found, made.uses, exact, lambda dtype: dtype, 1 << 20)
    program = made.inside({name: table for name, (table, _) in held.items()})

    ids = np.array([0, 4, 4999])
    (answer,) = run(program, made, torch.from_numpy(ids).int(), rows=False)
    rows = initial_rows(3, spec, ids) * (ids != 4)[:, None]
    expected = model.out(torch.from_numpy(rows)).squeeze(1).detach()
    np.testing.assert_allclose(expected, answer.detach(), rtol=1e-5)


class Bags(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.moved = nn.EmbeddingBag(5000, 3, mode=mode, padding_idx=4)
        self.out = nn.Linear(3, 1)

    def forward(self, ids):
        return self.out(self.moved(ids)).squeeze(1)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_an_embedding_bag_that_was_moved_is_torchs_in_a_program(mode):
    torch.manual_seed(0)
    model = Bags(mode)
    prepare(model, 1, {"out.weight", "out.bias"})

    def feed(records, mode):
        n = np.asarray(records["n"])
        return of(np.stack([n, n + 3, 0 * n + 4], 1)), None

    made = traced(model, feed)
    ids = of([[0, 7, 4], [4, 4, 4], [4999, 4999, 3]])
    (answer,) = run(made.dense(), made, ids)

    rows = torch.from_numpy(initial_rows(3, model.moved.spec, np.arange(5000)))
    plain = nn.EmbeddingBag.from_pretrained(rows, mode=mode, padding_idx=4)
    expected = model.out(plain(ids)).squeeze(1).detach()
    np.testing.assert_allclose(expected, answer.detach(), rtol=1e-5)


def number(records, mode):
    return of(records["n"]).float(), None


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.rows = Embedding("rows", 1)

    def forward(self, features):
        return self.function(self, features)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            lambda _self, x: x * 2 if bool((x > 3).all()) else x,
            "torch.export cannot trace the model: .* by --to rows",
        ),
        (lambda _self, x: x + x.shape[0] if x.shape[0] == 7 else x, "cannot trace the model"),
        (lambda self, x: self.rows(self.rows(x.long())[:, 0].mul(99).long())[:, 0], "of another"),
        (lambda _self, x: {"a": x, "b": 3}, "the model's output 'b' is a int, no tensor"),
    ],
)
def test_what_cannot_be_traced_is_told_in_a_sentence(function, said):
    with pytest.raises(UsageError, match=said):
        traced(Function(function), number).dense()


@pytest.mark.parametrize(
    ("feed", "said"),
    [
        (lambda r, m: ({"x": r["n"]}, None), "the feature '/x' is an array"),
        (lambda r, m: ({"x": "text"}, None), "a model is exported of tensors only"),
        (lambda r, m: (torch.zeros(3, 4), None), "is not the batch: its sizes are"),
        (lambda r, m: (torch.tensor(1.0), None), "has no batch axis"),
        (
            lambda r, m: ({"a": {"b": of(r["n"])}, "a.b": of(r["n"])}, None),
            "two features are named 'a.b'",
        ),
    ],
)
def test_features_that_are_no_inputs_are_told_in_a_sentence(feed, said):
    def first(features):
        while isinstance(features, dict):
            features = next(iter(features.values()))
        return features

    with pytest.raises(UsageError, match=said):
        traced(Function(lambda _self, x: torch.zeros(len(first(x)) if first(x).dim() else 1)), feed)
