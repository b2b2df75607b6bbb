"""Passes in 16-bit numbers: what is in them, what stays float32, and the scale of float16 losses.

Overflows are made by a factor of the loss: gradients of float16 end at 65,504.
"""

from collections import namedtuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from edl.common.errors import UsageError
from edl.nn import SGD, Embedding
from edl.nn.precision import LossScale, Overflow, Precision, widened
from edl.proto import master_pb2 as pb
from edl.ps.worker_client import Pulled, PushOutcome, PushResult
from edl.worker.group.allreduce import AllReduceTrainer
from edl.worker.group.sharded import ShardedTrainer
from edl.worker.group.slices import Slice
from edl.worker.model import Passes, model_spec
from edl.worker.servers.trainer import PsTrainer
from edl.worker.task_reader import Lease

CPU = torch.device("cpu")


class Dense(nn.Module):
    """Remembers the type of its products, and how often it was called."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(6, 16, bias=False)  # the norm takes it off
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(16, 1)
        self.types = []

    def forward(self, features):
        product = self.hidden(features)
        self.types.append(product.dtype)
        return self.out(self.drop(torch.tanh(self.norm(product)))).squeeze(1)


class WithTable(Dense):
    def __init__(self):
        super().__init__()
        self.rows = Embedding("t", 6, feature="ids")

    def forward(self, features):
        return super().forward(self.rows(features["ids"]))


class Servers:
    """One shard whose rows are a function of the id; the model's values stay the first ones."""

    def agree(self, spec, *, rows_given, timeout_s):
        """Agree on any model."""

    def pull(self, tables, *, dense=None, cut="", full=False, timeout_s):
        rows = {
            name: np.sin(ids[:, None] * 0.7 + np.arange(6)).astype(np.float32)
            for name, ids in tables.items()
        }
        return Pulled(True, (1,), rows, frozenset())

    def push(self, span, versions, *, dense, tables, wire, dense_into, timeout_s):
        return PushResult(PushOutcome.APPLIED, (1,))


def seeded(kind):
    def make():
        torch.manual_seed(3)
        return kind()

    return make


IDS = {"ids": torch.arange(12)}
LABELS = torch.linspace(-1, 1, 12)


def loss_times(factor):
    def loss(outputs, labels):
        assert outputs.dtype == torch.float32
        return factor * functional.mse_loss(outputs, labels)

    return loss


def on_servers(precision, factor=1.0, repeatable=False):
    make = seeded(WithTable)
    spec = model_spec(make(), SGD(), 0)
    passes = Passes(precision=precision, repeatable=repeatable)
    return PsTrainer(make, loss_times(factor), Servers(), spec, device=CPU, passes=passes)


def computed(trainer, labels=LABELS):
    prepared = trainer.prepare(IDS)
    return trainer.gradients(IDS, labels, prepared, trainer.begin(prepared, None), (1, 2))


def by_name(gradients):
    """Return dense gradients, changes of buffers and sums of rows."""
    return {**gradients.dense, **{name: sums for name, (_, sums) in gradients.rows.items()}}


def assert_near(found, expected, share):
    """Compare by the norm of the difference: an element may be rounded to nothing."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        off = float(np.linalg.norm(found[name] - values))
        assert off <= share * max(float(np.linalg.norm(values)), 1e-3), name
        assert found[name].dtype == np.float32


@pytest.mark.parametrize(
    ("precision", "dtype", "share"), [("bf16", torch.bfloat16, 0.05), ("fp16", torch.float16, 0.01)]
)
def test_products_are_in_half_numbers_and_gradients_near_those_of_float32(precision, dtype, share):
    exact, half = on_servers("float32"), on_servers(precision)
    expected, found = computed(exact), computed(half)

    assert ([torch.float32], [dtype]) == (exact.model.types, half.model.types)
    assert found.loss == pytest.approx(expected.loss, rel=0.02)
    assert_near(by_name(found), by_name(expected), share)
    assert all(p.dtype == torch.float32 for p in half.model.parameters())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_outputs_of_evaluations_are_float32_of_half_products(precision):
    made = on_servers(precision)
    outputs = made.outputs(IDS, made.prepare(IDS), "")

    assert (torch.float32, getattr(torch, {"bf16": "bfloat16", "fp16": "float16"}[precision])) == (
        outputs.dtype,
        made.model.types[-1],
    )
    assert not torch.equal(outputs, on_servers("float32").outputs(IDS, made.prepare(IDS), ""))


def test_a_gradient_too_small_for_float16_is_not_lost():
    """Without the scale all of it would be 0: 1e-9 is less than half of the least float16."""
    found, expected = computed(on_servers("fp16", 1e-7)), computed(on_servers("float32", 1e-7))

    assert_near(found.dense, expected.dense, 0.02)
    assert 0 < np.abs(found.dense["hidden.weight"]).max() < 1e-7


def test_a_step_that_overflows_is_computed_again_as_the_same_one():
    """Its dropout mask and the change of its running statistics are those of one pass."""
    made = on_servers("fp16", 1000.0)
    found = computed(made)

    assert 1 < len(made.model.types) < 12
    assert_near(by_name(found), by_name(computed(on_servers("float32", 1000.0))), 0.01)
    tries = len(made.model.types)
    computed(made)
    assert len(made.model.types) == tries + 1  # it has learnt the scale


def test_repeatable_steps_do_not_depend_on_what_was_computed_before():
    made = on_servers("fp16", 1000.0, repeatable=True)
    first = by_name(computed(made))
    tries = len(made.model.types)
    again = by_name(computed(made))

    assert 2 * tries == len(made.model.types)
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_what_no_scale_makes_finite_is_bad_content_and_leaves_the_scale():
    made = on_servers("fp16")
    computed(made)
    scale = made._numbers.factor()

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * float("inf")

    hook = made.model.out.register_forward_hook(lambda module, args, out: Broken.apply(out))
    with pytest.raises(Overflow, match="'hidden.weight'"):
        computed(made)
    hook.remove()

    assert scale == made._numbers.factor()
    with pytest.raises(ArithmeticError, match="the loss is nan"):  # of no use to try again
        computed(made, LABELS * float("nan"))


def test_the_scale_is_doubled_after_two_thousand_steps_that_fitted():
    scale, fails = LossScale(), [True, False]

    def compute():
        if fails and fails.pop(0):
            raise Overflow("too much")
        return scale.value

    assert scale.fit(compute) == 2.0**15
    assert {scale.fit(compute) for _ in range(1999)} == {2.0**15}
    assert scale.fit(compute) == 2.0**16


# -- groups


@pytest.fixture(scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def piece(features):
    lease = Lease(pb.Task(id=1, kind=pb.TRAIN, end=12))
    parts = [(features[:8], LABELS[:8], 8, None), (features[8:], LABELS[8:], 4, None)]
    return Slice(lease, 0, 12, 12, total=12, parts=parts)


def in_a_group(kind, precision, factor):
    make = seeded(Dense)
    spec = model_spec(make(), SGD(lr=0.1), 0)
    passes = Passes(precision=precision)
    made = kind(make, loss_times(factor), spec, device=CPU, passes=passes)
    if kind is ShardedTrainer:
        made.state.layout = 1, 0
    made.state.begin()
    made.enter(1)
    return made


@pytest.mark.parametrize("kind", [AllReduceTrainer, ShardedTrainer])
@pytest.mark.parametrize(("precision", "share"), [("bf16", 0.05), ("fp16", 0.01)])
def test_steps_of_a_group_are_near_those_of_float32(kind, precision, share, group):
    """The first step overflows in float16; nothing of what was tried is left."""
    torch.manual_seed(0)
    features = torch.randn(12, 6)
    found = {}
    for each in ("float32", precision):
        made = in_a_group(kind, each, 1000.0)
        step = made.reduce(piece(features), False)
        gradients = step.gradients[0] if kind is ShardedTrainer else step.gradients
        found[each] = {str(n): g.numpy().copy() for n, g in enumerate(gradients)}
        found[each] |= {f"buffer {n}": c.numpy() for n, c in enumerate(step.changes) if c.ndim}
        if kind is AllReduceTrainer:  # a sharded model is gathered first
            assert made.outputs(features).dtype == torch.float32
        scale = made._numbers.factor()
        made.enter(1)
        assert made._numbers.factor() == (2.0**16 if each == "fp16" else 1.0)

    assert 1.0 < scale < 2.0**16 if precision == "fp16" else scale == 1.0
    assert_near(found[precision], found["float32"], share)


# -- the outputs


Pair = namedtuple("Pair", ["left", "right"])


def test_half_tensors_are_widened_wherever_they_are_and_others_stay_the_same():
    half, whole = torch.ones(2, dtype=torch.bfloat16), torch.arange(2)
    kept = {"a": [whole, None], "b": (1, "text")}
    wide = widened({"a": Pair(half, [half, whole]), "b": kept})

    assert kept is widened(kept)
    assert isinstance(wide["a"], Pair)
    assert (torch.float32, torch.float32) == (wide["a"].left.dtype, wide["a"].right[0].dtype)
    assert wide["a"].right[1] is whole
    assert wide["b"] is kept


def test_a_gpu_without_bfloat16_is_said_in_a_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")

    with pytest.raises(
        UsageError, match="Tesla V100 does not compute in bfloat16: use --precision"
    ):
        Precision("bf16", torch.device("cuda"))
