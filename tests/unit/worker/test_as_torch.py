"""Generated modules train as in plain torch: on a server, by all-reduce, and fully sharded."""

import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tools.inprocess import InProcess
from tools.turns import examples, in_turn
from torch import nn
from torch.nn import functional

from edl.nn.buffers import _bits
from edl.nn.local import torch_optimizer
from edl.nn.optimizers import SGD, Adagrad, Adam, RMSprop
from edl.nn.replace import prepare
from edl.proto import master_pb2 as pb
from edl.worker.batches import split
from edl.worker.group.allreduce import AllReduceTrainer
from edl.worker.group.sharded import ShardedTrainer
from edl.worker.group.slices import Slice
from edl.worker.model import model_spec
from edl.worker.servers.trainer import PsTrainer
from edl.worker.task_reader import Lease

NO_SHRINK = [Phase.explicit, Phase.generate]
CPU = torch.device("cpu")
ROWS, WIDTH, IDS, HIDDEN = 7, 4, 3, 5
# Small eps would make rounding errors of gradients near zero large.
OPTIMIZERS = [
    SGD(lr=0.1),
    SGD(lr=0.05, momentum=0.9),
    Adagrad(lr=0.1, eps=0.01),
    Adam(lr=0.01, eps=0.01),
    RMSprop(lr=0.01, eps=0.01),
    SGD(lr=0.5, clip_norm=0.05),
]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]
WHOLE = [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64]
ODD = [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 1e-41, 3.1e38, 0.1, -7.0]


@dataclass(frozen=True)
class Recipe:
    """The parts that a module is made of."""

    optimizer: object
    bag: bool
    sparse: bool
    functional: bool
    padding: int | None
    mode: str
    by_freq: bool
    norm: str
    tied: bool
    unused: bool
    frozen: bool
    odd: bool  # parameters without a dimension, or without a value
    buffers: list  # dtype, values, persistent
    counts: str  # how a running mean is kept
    outputs: str
    loss_shape: tuple
    records: int
    minibatch: int


recipes = st.builds(
    Recipe,
    optimizer=st.sampled_from(OPTIMIZERS),
    bag=st.booleans(),
    sparse=st.booleans(),
    functional=st.booleans(),
    padding=st.sampled_from([None, 0, ROWS - 1]),
    mode=st.sampled_from(["sum", "mean", "max"]),
    by_freq=st.booleans(),
    norm=st.sampled_from(["", "batch", "batch without affine", "layer"]),
    tied=st.booleans(),
    unused=st.booleans(),
    frozen=st.booleans(),
    odd=st.booleans(),
    buffers=st.lists(
        st.tuples(
            st.sampled_from([*FLOATS, *WHOLE]),
            st.lists(st.sampled_from(ODD), max_size=4),
            st.booleans(),
        ),
        max_size=3,
    ),
    counts=st.sampled_from(["", "in place", "anew", "double"]),
    outputs=st.sampled_from(["tensor", "tuple", "dict"]),
    loss_shape=st.sampled_from([(), (1,), (1, 1)]),
    records=st.integers(2, 20),
    minibatch=st.integers(2, 6),
)


EXAMPLE = Recipe(
    optimizer=OPTIMIZERS[1],
    bag=False,
    sparse=False,
    functional=False,
    padding=None,
    mode="sum",
    by_freq=False,
    norm="batch",
    tied=True,
    unused=True,
    frozen=True,
    odd=False,
    buffers=[(torch.bool, [1.0, 0.0], True)],
    counts="anew",
    outputs="tensor",
    loss_shape=(),
    records=9,
    minibatch=4,
)


def constant(dtype, values):
    if dtype in WHOLE:
        values = [int(v) if math.isfinite(v) and abs(v) < 100 else 100 for v in values]
    if dtype in (torch.uint8, torch.bool):
        values = [abs(v) for v in values]
    return torch.tensor(values, dtype=torch.float64).to(dtype)


class Module(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        self.recipe = recipe
        sparse = recipe.sparse and isinstance(recipe.optimizer, SGD | Adagrad)
        self.sparse = sparse  # of a call that no job can see
        if recipe.bag:
            sparse = sparse and recipe.mode != "max"
            self.ids = nn.EmbeddingBag(
                ROWS, WIDTH, mode=recipe.mode, sparse=sparse, padding_idx=recipe.padding
            )
        else:
            self.ids = nn.Embedding(
                ROWS,
                WIDTH,
                sparse=sparse,
                padding_idx=recipe.padding,
                scale_grad_by_freq=recipe.by_freq and not sparse,
            )
        self.hidden = nn.Linear(2 * WIDTH, HIDDEN)
        self.norm = {
            "": nn.Identity,
            "batch": lambda: nn.BatchNorm1d(HIDDEN, eps=0.1),
            "batch without affine": lambda: nn.BatchNorm1d(HIDDEN, eps=0.1, affine=False),
            "layer": lambda: nn.LayerNorm(HIDDEN),
        }[recipe.norm]()
        self.middle = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.again = nn.Linear(HIDDEN, HIDDEN)
        if recipe.tied:
            self.again.weight = self.middle.weight
        self.out = nn.Linear(HIDDEN, 1)
        if recipe.unused:
            self.never = nn.Parameter(torch.ones(3, 2))
        if recipe.frozen:
            self.hidden.weight.requires_grad_(False)
            self.still = nn.Parameter(torch.arange(3), requires_grad=False)
        if recipe.odd:
            self.scale = nn.Parameter(torch.tensor(1.5))
            self.nothing = nn.Parameter(torch.zeros(0, 3))
        for number, (dtype, values, persistent) in enumerate(recipe.buffers):
            self.register_buffer(f"b{number}", constant(dtype, values), persistent=persistent)
        if recipe.counts:
            dtype = torch.float64 if recipe.counts == "double" else torch.float32
            self.register_buffer("running", torch.zeros(HIDDEN, dtype=dtype))

    def forward(self, features):
        if self.recipe.functional:
            rows = functional.embedding(features["ids"], self.ids.weight, sparse=self.sparse)
            rows = rows.sum(1) if self.recipe.bag else rows
        else:
            rows = self.ids(features["ids"])
        rows = rows if self.recipe.bag else rows.sum(1)
        x = self.norm(torch.tanh(self.hidden(torch.cat([rows, features["x"]], 1))))
        if self.recipe.counts and self.training:
            mean = x.detach().mean(0).to(self.running.dtype)
            if self.recipe.counts == "anew":
                self.running = 0.9 * self.running + 0.1 * mean
            else:
                self.running.mul_(0.9).add_(mean, alpha=0.1)
        x = self.again(torch.tanh(self.middle(x)))
        y = self.out(x).squeeze(1)
        if self.recipe.odd:
            y = y * self.scale + self.nothing.sum()
        return {"tensor": y, "tuple": (y, x), "dict": {"y": y, "x": x}}[self.recipe.outputs]


def maker(recipe, for_job=True):
    def make():
        torch.manual_seed(11)
        model = Module(recipe)
        if for_job:
            prepare(model, 0)
        return model

    return make


def loss_of(recipe):
    def loss(outputs, labels):
        parts = {"tensor": lambda: (outputs, outputs), "tuple": lambda: outputs}
        y, x = parts.get(recipe.outputs, lambda: (outputs["y"], outputs["x"]))()
        return (functional.mse_loss(y, labels) + 0.01 * x.square().mean()).reshape(
            recipe.loss_shape
        )

    return loss


def batches(recipe):
    """Yield features and labels of each span."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(ROWS, (recipe.records, IDS), generator=generator)
    x = torch.randn(recipe.records, WIDTH, generator=generator)
    y = torch.randn(recipe.records, generator=generator)
    for start, end in split(0, recipe.records, recipe.minibatch, ()):
        yield start, end, {"ids": ids[start:end], "x": x[start:end]}, y[start:end]


def by_torch(recipe):
    """Return the model that torch's own loop comes to."""
    model = maker(recipe, for_job=False)()
    spec = recipe.optimizer
    steps = torch_optimizer(spec, [p for p in model.parameters() if p.requires_grad])
    for _, _, features, labels in batches(recipe):
        steps.zero_grad(set_to_none=True)
        loss_of(recipe)(model(features), labels).backward()
        steps.step()
    return model


def assert_same(recipe, trainer):
    expected = by_torch(recipe)
    trainer.refresh()
    first = dict(maker(recipe)().named_buffers())
    found = trainer.state_dict()
    wanted = expected.state_dict()
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        if name in first and torch.equal(_bits(first[name]), _bits(value)):
            continue
        torch.testing.assert_close(
            found[name], value, rtol=2e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
    there = dict(trainer.model.named_buffers())
    for name, value in expected.named_buffers():
        if torch.equal(_bits(first[name]), _bits(value)):
            assert torch.equal(_bits(value), _bits(there[name])), name


def on_a_server(recipe):
    make = maker(recipe)
    ps = InProcess()
    spec = model_spec(make(), recipe.optimizer, 11)
    trainer = PsTrainer(make, loss_of(recipe), ps, spec, device=CPU)
    for start, end, features, labels in batches(recipe):
        pull = trainer.begin({}, None)
        gradients = trainer.gradients(features, labels, {}, pull, (0, 1, start))
        trainer.push(1, 1, start, end, gradients)
    return trainer


def in_a_group(recipe, kind=AllReduceTrainer):
    make = maker(recipe)
    trainer = kind(make, loss_of(recipe), model_spec(make(), recipe.optimizer, 11), device=CPU)
    trainer.state.begin()
    trainer.enter(1)
    for start, end, features, labels in batches(recipe):
        lease = Lease(pb.Task(id=1, kind=pb.TRAIN, end=recipe.records))
        count = end - start
        parts = [(features, labels, count, None)]
        trainer.commit(
            trainer.reduce(Slice(lease, start, end, count, total=count, parts=parts), False)
        )
    if kind is ShardedTrainer:
        trainer.source = lambda _, rank, spans: trainer.state.own.read(spans)
    return trainer


@pytest.fixture(scope="module", autouse=True)
def group():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch.set_num_threads(threads)


@in_turn(0)
@settings(max_examples=examples(330), phases=NO_SHRINK)
@given(recipes)
def test_a_server_comes_to_what_torch_comes_to(recipe):
    assert_same(recipe, on_a_server(recipe))


@in_turn(3)
@settings(max_examples=examples(270), phases=NO_SHRINK)
@given(recipes)
def test_a_group_comes_to_what_torch_comes_to(recipe):
    recipe = dataclasses.replace(recipe, functional=recipe.functional and not recipe.sparse)
    assert_same(recipe, in_a_group(recipe))


@settings(max_examples=examples(40), phases=NO_SHRINK)
@given(recipes)
def test_a_group_that_shards_the_model_comes_to_what_torch_comes_to(recipe):
    """The model has a dimension to shard by, and weights that their own module uses."""
    recipe = dataclasses.replace(recipe, odd=False, functional=False)
    assert_same(recipe, in_a_group(recipe, ShardedTrainer))


@pytest.mark.parametrize("train", [on_a_server, in_a_group])
def test_channels_last_weights_come_to_what_torch_comes_to(train, monkeypatch):
    recipe = EXAMPLE

    class Pictures(Module):
        def __init__(self, recipe):
            super().__init__(recipe)
            self.filter = nn.Conv2d(WIDTH, WIDTH, 1).to(memory_format=torch.channels_last)

        def forward(self, features):
            x = features["x"].reshape(-1, WIDTH, 1, 1).to(memory_format=torch.channels_last)
            return super().forward({**features, "x": self.filter(x).flatten(1)})

    monkeypatch.setitem(globals(), "Module", Pictures)
    assert_same(recipe, train(recipe))
