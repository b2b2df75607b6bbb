"""Several backward passes for one micro-batch, on one replica: plain torch is the oracle."""

import functools

import numpy as np
import pytest
import torch
from tools.noise import Loop, multi_sample, smoothed
from torch import distributed, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from edl.adaptive import AdaptiveDataParallel, data, session
from edl.common.errors import UsageError


@pytest.fixture(scope="module", autouse=True)
def process_group():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def fresh():
    session.reset()
    yield
    session.reset()


@pytest.fixture
def enter(monkeypatch):
    """Return a function that makes a loop the one that runs, of steps of the initial batch."""

    def enter(micros):
        loop = Loop(current_local_bsz=4, accumulation_steps=micros - 1, batch_size=4 * micros)
        monkeypatch.setattr(data, "current_dataloader", lambda: loop)
        return loop

    return enter


def gan():
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return one, nn.Linear(2, 3).double()


def batches(steps, micros):
    """Return real records and noise, by step and micro-batch."""
    made = torch.Generator().manual_seed(1)
    pairs = [
        (torch.randn(4, 3, generator=made).double(), torch.randn(4, 2, generator=made).double())
        for _ in range(steps * micros)
    ]
    return [pairs[step * micros : (step + 1) * micros] for step in range(steps)]


def loss(logits, is_real):
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(is_real)))


def train(loop, steps, one, other, *optimizers):
    """Train as AdaptDL's dcgan does: two passes of D, its step, then G's pass through D."""
    for step in batches(steps, loop.accumulation_steps + 1):
        for micro in loop.micro_batches():
            real, noise = step[micro]
            optimizers[0].zero_grad()
            loss(one(real), True).backward()
            fake = other(noise)
            loss(one(fake.detach()), False).backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            loss(one(fake), True).backward()
            optimizers[1].step()


def train_plainly(steps, micros, one, other, *optimizers):
    """Do what a step of several micro-batches means: the mean of the gradients of each."""
    for step in batches(steps, micros):
        sums = [[torch.zeros_like(p) for p in net.parameters()] for net in (one, other)]
        for micro, (real, noise) in enumerate(step):
            fake = other(noise)
            losses = [loss(one(real), True) + loss(one(fake.detach()), False)]
            for at, (net, optimizer) in enumerate(zip((one, other), optimizers, strict=True)):
                parameters = list(net.parameters())
                for added, gradient in zip(
                    sums[at], torch.autograd.grad(losses[at], parameters), strict=True
                ):
                    added += gradient / micros
                if micro == micros - 1:
                    for parameter, gradient in zip(parameters, sums[at], strict=True):
                        parameter.grad = gradient
                    optimizer.step()
                losses.append(loss(one(other(noise)), True))


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("micros", [1, 3])
def test_a_gan_learns_what_plain_torch_does(enter, micros, make):
    ours, theirs = gan(), gan()
    optimizers = [make(net.parameters(), lr=0.1) for net in (*ours, *theirs)]
    nets = [
        AdaptiveDataParallel(net, optimizer, name=name)
        for net, optimizer, name in zip(ours, optimizers[:2], "DG", strict=True)
    ]
    train(enter(micros), 5, *nets, *optimizers[:2])
    train_plainly(5, micros, *theirs, *optimizers[2:])

    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.state_dict(), its.state_dict())


class Plane(nn.Module):
    """A loss that is linear in the weights: its gradient is the input, whatever the weights are."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, gradient):
        return self.weight @ gradient


def wrap(lr=0.1):
    plane = Plane()
    optimizer = torch.optim.SGD(plane.parameters(), lr=lr)
    net = AdaptiveDataParallel(plane, optimizer, gns_every=1)
    return net, optimizer


def given(count):
    return torch.tensor(np.random.default_rng(0).normal(1.0, 2.0, (count, 2, 3)))


def make_steps(net, optimizer, loop, pairs, stray=False, zero_at="start"):
    supply = iter(pairs)
    for _ in range(len(pairs) // (loop.accumulation_steps + 1)):
        for _ in loop.micro_batches():
            if zero_at in ("start", "both"):
                optimizer.zero_grad()
            for part in next(supply):
                net(part).backward()
            optimizer.step()
            if zero_at in ("end", "both"):
                optimizer.zero_grad()
            if stray:
                net(torch.full((3,), 100.0, dtype=torch.float64)).backward()
    net.gns.collect()
    return net.gns.raw_sqr_avg[0], net.gns.raw_var_avg[0]


@pytest.mark.parametrize("stray", [False, True])
def test_the_noise_is_that_of_the_micro_batches_whole_gradients(enter, stray):
    net, optimizer = wrap()
    pairs = given(8)
    found = make_steps(net, optimizer, enter(2), pairs, stray)

    # That there are two passes is known from the first step on, which is not measured.
    whole = pairs.sum(1).numpy()
    oracle = [multi_sample([[g] for g in whole[at : at + 2]], scale=1) for at in (2, 4, 6)]
    expected = [smoothed(column, [0.999] * 3) for column in zip(*oracle, strict=True)]
    assert expected == pytest.approx(found)
    assert (-0.1 * whole.sum(0) / 2).tolist() == pytest.approx(net.module.weight.tolist())


@pytest.mark.parametrize(
    ("stray", "zero_at"),
    [(False, "start"), (True, "start"), (False, "end"), (True, "both")],
)
def test_the_noise_is_learnt_without_accumulation(enter, stray, zero_at):
    net, optimizer = wrap()
    pairs = given(6)
    found = make_steps(net, optimizer, enter(1), pairs, stray, zero_at)

    # Of single gradients, those of two steps in a row: here every other step has a pair.
    whole = pairs.sum(1).numpy()
    oracle = [
        (a @ b, np.sum((a - b) ** 2) / 2) for a, b in zip(whole[::2], whole[1::2], strict=True)
    ]
    thetas = [0.999**2, 0.999**4, 0.999**4]
    expected = [smoothed(column, thetas) for column in zip(*oracle, strict=True)]
    assert expected == pytest.approx(found)


def test_several_steps_for_one_batch_are_those_of_plain_torch(enter):
    """As of a critic, which is trained several times for each batch."""
    ours, theirs = (nn.Linear(3, 1, bias=False).double() for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (ours, theirs)]
    net = AdaptiveDataParallel(ours, optimizers[0])
    for part in given(4)[:, 0]:
        for _ in enter(1).micro_batches():
            for model, optimizer in zip((net, theirs), optimizers, strict=True):
                for _ in range(3):
                    optimizer.zero_grad()
                    mse_loss(model(part), torch.ones(1).double()).backward()
                    optimizer.step()

    torch.testing.assert_close(ours.weight, theirs.weight)
    assert 12.0 == net.progress


def test_several_steps_for_a_batch_that_is_part_of_one_are_refused(enter):
    net, optimizer = wrap()

    def train():
        for _ in enter(2).micro_batches():
            for part in given(1)[0]:
                optimizer.zero_grad()
                net(part).backward()
                optimizer.step()

    with pytest.raises(UsageError, match=r"optimizer\.step\(\) comes twice for one batch"):
        train()


def test_gradients_that_come_before_zero_grad_are_refused_where_others_stay(enter):
    """Those of a GAN's generator, were it trained first."""
    net, optimizer = wrap()

    def train():
        for _ in enter(2).micro_batches():
            for part in given(1)[0]:
                net(part).backward()
                optimizer.zero_grad()

    with pytest.raises(UsageError, match=r"zero_grad\(\) comes between two backward passes"):
        train()


def test_one_gradscaler_may_scale_for_two_optimizers(enter):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    nets = {}
    for name in ("one", "two"):
        plane = Plane()
        optimizer = torch.optim.SGD(plane.parameters(), lr=1.0)
        nets[name] = AdaptiveDataParallel(plane, optimizer, None, scaler, name=name)
    pairs = given(4)
    for step in range(2):
        for micro in enter(2).micro_batches():
            for net in nets.values():
                net.optimizer.zero_grad()
                for part in pairs[2 * step + micro]:
                    scaler.scale(net(part)).backward()
                scaler.step(net.optimizer)
            scaler.update()

    expected = functools.reduce(torch.add, pairs.sum(1)) / -2
    for net in nets.values():
        torch.testing.assert_close(net.module.weight.data, expected)
