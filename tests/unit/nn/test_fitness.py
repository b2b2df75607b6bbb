"""The faults of a model that are refused, or told, before a job starts."""

import pytest
import torch
from torch import nn

from edl.common.errors import DefinitionError
from edl.nn import SGD, Accuracy, Embedding, Mean, MeanSquaredError
from edl.nn.buffers import NonFinite
from edl.nn.fitness import Weights, check_loss, faults, loss_value, remarks
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec, difference
from edl.nn.replace import prepare


def complex_one():
    model = nn.Linear(2, 2)
    model.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    return model


def sparse_one(persistent=True):
    model = nn.Linear(2, 2)
    model.register_buffer("graph", torch.eye(2).to_sparse(), persistent=persistent)
    return model


def both():
    return nn.ModuleDict({"rows": Embedding("t", 2), "out": nn.Linear(2, 1)})


@pytest.mark.parametrize(
    ("make", "strategy", "sentence"),
    [
        (
            lambda: nn.Sequential(nn.Embedding(9, 2, max_norm=1.0)),
            "ps",
            "0 (Embedding) has max_norm",
        ),
        (lambda: nn.EmbeddingBag(9, 2, max_norm=1.0), "", "the model (EmbeddingBag) has max_norm"),
        (complex_one, "ps", "the parameter 'phase' is complex"),
        (sparse_one, "allreduce", "the buffer 'graph' is sparse_coo"),
        (both, "allreduce", "use --strategy hybrid, or ps; or nn.Embedding"),
        (lambda: nn.Linear(2, 1), "hybrid", "use --strategy allreduce"),
        (lambda: Embedding("t", 2), "hybrid", "no parameter outside of tables"),
        (both, "hybrid", ""),
        (lambda: nn.Linear(2, 1), "allreduce", ""),
        (lambda: sparse_one(persistent=False), "ps", ""),
        (lambda: nn.EmbeddingBag(9, 2, sparse=True, padding_idx=0), "allreduce", ""),
        (lambda: nn.Embedding(9, 2, max_norm=1.0).requires_grad_(False), "ps", ""),
    ],
)
def test_a_model_that_could_not_be_kept_is_refused_in_a_sentence(make, strategy, sentence):
    found = faults(make(), strategy)

    assert [sentence] == [sentence for each in found if sentence in each] if sentence else not found


@pytest.mark.parametrize(
    ("make", "strategy", "sentence"),
    [
        (
            lambda: nn.Linear(2, 1).double(),
            "ps",
            "weight, bias are float64: servers and checkpoints",
        ),
        (lambda: nn.Linear(2, 1).double(), "allreduce", "workers train in it, checkpoints keep"),
        (lambda: nn.BatchNorm1d(3, momentum=None), "ps", "the model has momentum=None"),
        (lambda: nn.BatchNorm1d(3), "ps", ""),
    ],
)
def test_what_is_not_quite_as_in_torch_is_told(make, strategy, sentence):
    found = remarks(make(), strategy)

    assert sentence in found[0] if sentence else not found


def test_sparse_gradients_are_made_dense():
    model = nn.ModuleList([nn.Embedding(9, 2, sparse=True), nn.EmbeddingBag(9, 2, sparse=True)])
    prepare(model, 0)

    for module in model:
        module(torch.tensor([[1, 2]])).sum().backward()
        assert module.weight.grad.layout == torch.strided


def test_a_forward_that_writes_to_a_weight_is_refused():
    model = nn.Linear(2, 2)
    weights = Weights(model)
    weights.begin()
    weights.check()
    with torch.no_grad():
        model.weight.clamp_(-0.1, 0.1)

    with pytest.raises(DefinitionError, match="writes to the parameter 'weight'"):
        weights.check()


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (torch.ones(2, 3, requires_grad=True), r"returned float32\[2, 3\] instead of a scalar"),
        (0.5, "returned a float instead of a scalar"),
        (torch.tensor(1.0), "nothing would be learnt"),
    ],
)
def test_a_loss_that_no_backward_pass_begins_with_is_refused(loss, sentence):
    with pytest.raises(DefinitionError, match=sentence):
        check_loss(loss)


@pytest.mark.parametrize(("n", "sentence"), [(2, "^the loss is nan$"), (0, "left no record")])
def test_a_loss_of_no_record_is_told_from_one_that_is_not_finite(n, sentence):
    with pytest.raises(NonFinite, match=sentence):
        loss_value(torch.tensor(float("nan")), torch.ones(n))
    assert loss_value(torch.tensor(0.5), torch.ones(n)) == 0.5


ORDER = "the tensors have another order, as those of a set in each process"
SPEC = ModelSpec((DenseSpec("a", (2, 3)), DenseSpec("b", (2,))), (TableSpec("t", 4),), SGD(lr=0.1))


@pytest.mark.parametrize(
    ("dense", "tables", "optimizer", "told"),
    [
        ({"a": (2, 3)}, {"t": 4}, SGD(lr=0.1), "tensor 'b' is only there"),
        ({"a": (2, 3), "b": (2,), "c": ()}, {"t": 4}, SGD(lr=0.1), "tensor 'c' is only here"),
        (
            {"a": (2, 3), "z": (2,)},
            {"t": 4},
            SGD(lr=0.1),
            "tensor 'z' is only here; tensor 'b' is only there",
        ),
        (
            {"a": (3, 2), "b": (2,)},
            {"t": 4},
            SGD(lr=0.1),
            "tensor 'a' has shape [3, 2] here, [2, 3] there",
        ),
        ({"b": (2,), "a": (2, 3)}, {"t": 4}, SGD(lr=0.1), ORDER),
        ({"a": (2, 3), "b": (2,)}, {"t": 8}, SGD(lr=0.1), "table 't' has dim 8 here, 4 there"),
        ({"a": (2, 3), "b": (2,)}, {}, SGD(lr=0.1), "table 't' is only there"),
    ],
)
def test_another_model_is_told_by_what_differs(dense, tables, optimizer, told):
    mine = ModelSpec(
        tuple(DenseSpec(name, shape) for name, shape in dense.items()),
        tuple(TableSpec(name, dim) for name, dim in tables.items()),
        optimizer,
    )

    assert told == difference(mine, SPEC)


def test_two_that_have_nothing_in_common_are_told_in_one_sentence_too():
    mine = ModelSpec(tuple(DenseSpec(f"x{n}", (1,)) for n in range(50)), (), SGD(lr=0.2), seed=1)

    told = difference(mine, SPEC)

    assert "; and 49 more; the optimizer is SGD(lr=0.2" in told
    assert len(told) < 500


@pytest.mark.parametrize("lr", [lambda version: 0.1, "0.1", None, True, torch.optim.SGD])
def test_a_learning_rate_that_servers_cannot_follow_is_one_sentence(lr):
    with pytest.raises(
        DefinitionError, match=r"SGD\(lr=.*\): lr is a number or a schedule of edl.nn"
    ):
        SGD(lr=lr)


def test_a_threshold_is_taken_by_place_and_a_wrong_one_refused():
    assert 0.3 == Accuracy(0.3).threshold
    with pytest.raises(DefinitionError, match=r"Accuracy\(threshold='multiclass'\)"):
        Accuracy("multiclass")


def test_a_metric_of_one_array_says_so_to_a_dict_and_a_tuple():
    y = torch.ones(3)
    for outputs in ({"y": y, "x": y}, (y, y)):
        for metric in (Accuracy(), MeanSquaredError()):
            with pytest.raises(ValueError, match="where it needs one tensor"):
                metric.update(outputs, y)


def test_a_mean_counts_the_records_of_labels_in_a_dict_or_tuple():
    for wrap in (lambda y: {"a": y, "b": y}, lambda y: (y, y), lambda y: y):
        mean = Mean(lambda outputs, labels: outputs.mean())
        mean.update(torch.zeros(3), wrap(torch.zeros(3)))
        mean.update(torch.ones(1), wrap(torch.ones(1)))
        assert 0.25 == mean.value()
