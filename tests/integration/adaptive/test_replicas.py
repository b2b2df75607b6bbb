"""The adaptive model on several replicas: real processes, gloo."""

import numpy as np
import pytest
import torch
from tools.elastic import elastic
from tools.noise import Loop, mean, multi_sample, smoothed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from edl.adaptive import (
    AdaptiveDataLoader,
    AdaptiveDataParallel,
    LinearScale,
    data,
    profile,
    session,
)
from edl.adaptive.checkpoint import save_all_states
from edl.adaptive.env import num_restarts, replica_rank
from edl.adaptive.epoch import remaining_epochs_until
from edl.adaptive.process_group import init_process_group

STEPS, SIZE = 3, 5


class Plane(nn.Module):
    """A loss whose gradient is the input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))

    def forward(self, gradient):
        return self.weight @ gradient


def gradients(step, micros):
    """Return the gradients of a step: [2 * micros, SIZE], replica by replica."""
    return np.random.default_rng(step).normal(1.0, 2.0, (2 * micros, SIZE))


def measure(say, patch, micros):
    """Make a few steps of two replicas: weights, estimates, and the times of synchronising."""
    loop = Loop(current_local_bsz=8, accumulation_steps=micros - 1, replicas=2, batch_size=16)
    patch.setattr(data, "current_dataloader", lambda: loop)
    times = []
    patch.setattr(profile, "record_sync", times.append)
    plane = Plane()
    optimizer = torch.optim.SGD(plane.parameters(), lr=0.1)
    net = AdaptiveDataParallel(
        plane, optimizer, scaling_rule=LinearScale(), name=f"{micros}", gns_every=1
    )
    for step in range(STEPS):
        mine = gradients(step, micros)[replica_rank() * micros :][:micros]
        for micro in loop.micro_batches():
            net.optimizer.zero_grad()
            net(torch.tensor(mine[micro])).backward()
            net.optimizer.step()
    net.gns.collect()
    stats = [float(net.gns.raw_sqr_avg[0]), float(net.gns.raw_var_avg[0])]
    # The first pass learns which gradient is the last one, the others are timed.
    say((micros, plane.weight.tolist(), stats, [len(times), min(times) >= 0]))


def compare_with_plain(say, patch):
    """Check that the weights are those of DDP.

    The model has batch normalisation, unused and frozen parameters, and another bucket layout.
    """

    def make():
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        net[0].bias.requires_grad_(False)
        return net, torch.optim.SGD(net.parameters(), lr=0.1)

    loop = Loop(current_local_bsz=6, replicas=2, batch_size=12)
    patch.setattr(data, "current_dataloader", lambda: loop)
    ours, theirs = make(), make()
    kwargs = {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001}
    nets = [
        (AdaptiveDataParallel(*ours, name="ours", **kwargs), ours[1]),
        (DistributedDataParallel(theirs[0], **kwargs), theirs[1]),
    ]
    for net, optimizer in nets:
        torch.manual_seed(replica_rank())
        for _ in range(5):
            for _ in loop.micro_batches():
                optimizer.zero_grad()
                net(torch.randn(6, 4)).square().sum().backward()
                optimizer.step()
    same = [
        torch.equal(a, b)
        for a, b in zip(ours[0].state_dict().values(), theirs[0].state_dict().values(), strict=True)
    ]
    say(("same", all(same)))


def time_some(say, patch):
    """Say which passes of many that are hardly measured tell what their synchronising cost."""
    loop = Loop(current_local_bsz=8, replicas=2, batch_size=16)
    patch.setattr(data, "current_dataloader", lambda: loop)
    at, timed = [0], []
    patch.setattr(profile, "record_sync", lambda seconds: timed.append(at[0]))
    plane = Plane()
    net = AdaptiveDataParallel(plane, torch.optim.SGD(plane.parameters(), lr=0.1), name="timed")
    net.gns.estimator.samples = 64
    for at[0] in range(40):
        for _ in loop.micro_batches():
            net.optimizer.zero_grad()
            net(torch.ones(SIZE, dtype=torch.float64)).backward()
            net.optimizer.step()
    say(("timed", timed))


def sum_parts(say, patch):
    """Say where steps of two micro-batches lead, each of two passes, and what noise is found.

    Each forward pass comes before its backward pass, or both before both.
    """
    loop = Loop(current_local_bsz=8, accumulation_steps=1, replicas=2, batch_size=16)
    patch.setattr(data, "current_dataloader", lambda: loop)
    found = []
    for together in (False, True):
        plane = Plane()
        optimizer = torch.optim.SGD(plane.parameters(), lr=0.1)
        net = AdaptiveDataParallel(
            plane, optimizer, scaling_rule=LinearScale(), name=f"parts {together}", gns_every=1
        )
        for step in range(STEPS):
            mine = torch.tensor(gradients(step, 4)[replica_rank() * 4 :][:4])
            for micro in loop.micro_batches():
                optimizer.zero_grad()
                passes = (net(part) for part in mine[2 * micro :][:2])
                for loss in list(passes) if together else passes:
                    loss.backward()
                optimizer.step()
        net.gns.collect()
        stats = [float(net.gns.raw_sqr_avg[0]), float(net.gns.raw_var_avg[0])]
        found.append((plane.weight.tolist(), stats))
    say(found)


def learn(say):
    """Train an epoch in each generation, of a regression without noise."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(203, 4)).astype(np.float32)
    targets = inputs @ np.array([1.0, -2.0, 3.0, 0.5], np.float32)
    loader = AdaptiveDataLoader(
        list(zip(inputs, targets, strict=True)), batch_size=10, shuffle=True
    )
    line = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.Adam(line.parameters(), lr=0.1)
    net = AdaptiveDataParallel(line, optimizer)
    say(summary(net))
    for epoch in remaining_epochs_until(2):
        for x, y in loader:
            optimizer.zero_grad()
            (net(x)[:, 0] - y).square().mean().backward()
            optimizer.step()
        if epoch == num_restarts():
            break
    save_all_states()
    say(summary(net))


def summary(net):
    (state,) = net.optimizer.state.values() or ({"step": 0.0},)
    weights = net.module.weight.flatten().tolist()
    return weights, net.progress, float(state["step"]), net.gns.estimator.state_dict()


def work(say):
    """Work as two replicas, then as one."""
    init_process_group("gloo")
    if num_restarts() == 0:
        with pytest.MonkeyPatch.context() as patch:
            for micros in (1, 3):
                measure(say, patch, micros)
            compare_with_plain(say, patch)
            time_some(say, patch)
            sum_parts(say, patch)
        session.reset()  # of the states of these models
        init_process_group("gloo")
    learn(say)
    return 1 - num_restarts()


@pytest.fixture(scope="module")
def generations(tmp_path_factory):
    """Return what all replicas had to say, by generation."""
    generations = elastic(work, tmp_path_factory.mktemp("checkpoints"), replicas=2)
    return [[replica.said for replica in replicas] for replicas in generations]


@pytest.fixture
def said(generations):
    """Return what the two replicas of the first generation had to say."""
    return generations[0]


@pytest.mark.parametrize(("micros", "at"), [(1, 0), (3, 1)])
def test_the_noise_of_replicas_is_the_oracle_s(said, micros, at):
    """McCandlish et al., appendix A.1: data parallel training has the small batches' gradients
    anyway.
    """
    oracle = [multi_sample([[g] for g in gradients(s, micros)], micros) for s in range(STEPS)]
    expected = [smoothed(column, [0.999**micros] * STEPS) for column in zip(*oracle, strict=True)]

    for replica in said:
        assert expected == pytest.approx(replica[at][2])


@pytest.mark.parametrize(("micros", "at"), [(1, 0), (3, 1)])
def test_replicas_step_along_the_mean_of_all_micro_gradients(said, micros, at):
    along = sum(mean([[g] for g in gradients(step, micros)])[0] for step in range(STEPS))
    expected = (-0.1 * micros * along).tolist()  # linearly scaled

    assert [pytest.approx(expected)] * 2 == [replica[at][1] for replica in said]
    assert said[0][at][1] == said[1][at][1]


def test_what_synchronising_costs_is_told_at_every_measured_step(said):
    """The first pass of all is left out, of which nobody knows which gradient is the last."""
    told = [replica[at][3] for replica in said for at in (0, 1)]

    assert [[STEPS - 1, True], [STEPS, True]] * 2 == told


def test_where_few_steps_are_measured_others_tell_what_synchronising_costs(said):
    """Steps 0 and 32 are measured, which makes them other than most."""
    assert [("timed", [1, 33])] * 2 == [replica[3] for replica in said]


def test_at_the_initial_batch_size_weights_are_those_of_plain_data_parallelism(said):
    assert [("same", True)] * 2 == [replica[2] for replica in said]


def test_a_micro_batch_of_several_passes_has_the_gradient_of_their_sum(said):
    """Of the first step nobody knows yet that its passes are several: it is not measured."""
    summed = [gradients(step, 4).reshape(4, 2, SIZE).sum(1) for step in range(STEPS)]
    expected = -0.1 * 2 * sum(part.mean(0) for part in summed)  # linearly scaled
    oracle = [multi_sample([[g] for g in part], scale=2) for part in summed[1:]]
    thetas = [0.999**2] * (STEPS - 1)
    noise = [smoothed(column, thetas) for column in zip(*oracle, strict=True)]

    for replica in said:
        assert [(pytest.approx(expected.tolist()), pytest.approx(noise))] * 2 == replica[4]
    assert said[0][4] == said[1][4]


def test_a_model_goes_on_with_another_number_of_replicas_where_it_was(generations):
    two, (one,) = generations
    (began, ended), (again, at_last) = two[0][5:], one

    steps = [ended[2], at_last[2]]
    assert ended == two[1][6] == again != began
    assert [21.0, 42.0] == steps == pytest.approx([ended[1], at_last[1]])  # 200 in tens, 13 in two
