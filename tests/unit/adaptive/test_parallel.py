"""The adaptive model on one replica: accumulation, noise, learning rates, state."""

import functools
import io
import itertools

import numpy as np
import pytest
import torch
from tools.noise import Loop, mean, multi_sample, smoothed
from torch import distributed, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, MultiStepLR, OneCycleLR

from edl.adaptive import (
    AdamScale,
    AdaptiveDataParallel,
    AdaScale,
    LEGWScale,
    LinearScale,
    SqrtScale,
    collective,
    data,
    profile,
    session,
)
from edl.adaptive.newest import models
from edl.common.errors import CheckpointError, UsageError


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
    """Return a function that makes a loop the one that runs; without an argument none does."""

    def enter(loop=None):
        monkeypatch.setattr(data, "current_dataloader", lambda: loop)
        return loop

    enter()
    return enter


class Plane(nn.Module):
    """A loss that is linear in the weights: its gradient is the input, whatever the weights are."""

    def __init__(self, *sizes):
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(n, dtype=torch.float64) for n in sizes)

    def forward(self, gradient):
        return sum(w @ g for w, g in zip(self.weights, gradient, strict=True))


def gradients(seed, count, *sizes):
    random = np.random.default_rng(seed)
    return [[random.normal(1.0, 2.0, n) for n in sizes] for _ in range(count)]


def wrap(optimizer=torch.optim.SGD, sizes=(3,), name="model", **more):
    lr = more.pop("lr", 0.1)
    plane = Plane(*sizes)
    net = AdaptiveDataParallel(plane, optimizer(plane.parameters(), lr=lr), name=name, **more)
    return net, net.optimizer


def train(net, loop, micro_gradients):
    """Make one optimizer step for so many micro-gradients at a time, as a user would write it."""
    supply = iter(micro_gradients)
    while True:
        for _ in loop.micro_batches():
            gradient = next(supply, None)
            if gradient is None:
                return
            net.optimizer.zero_grad()
            net([torch.tensor(part) for part in gradient]).backward()
            net.optimizer.step()


def weights(net):
    return [w.detach().numpy().copy() for w in net.module.weights]


def test_micro_gradients_of_a_step_are_averaged_and_then_applied_once(enter):
    net, _ = wrap(lr=0.5, scaling_rule=None)
    loop = enter(Loop(accumulation_steps=2, current_local_bsz=8, batch_size=24))
    given = gradients(0, 6, 3)
    train(net, loop, given)

    expected = -0.5 * (mean(given[:3])[0] + mean(given[3:])[0])
    assert expected == pytest.approx(weights(net)[0])


@pytest.mark.parametrize("micros", [2, 5])
def test_the_noise_of_accumulated_gradients_is_the_oracle_s_at_every_step(enter, micros):
    net, _ = wrap(sizes=(3, 4))
    loop = enter(Loop(accumulation_steps=micros - 1))
    given = gradients(1, 4 * micros, 3, 4)
    found, expected = [], []
    for step in range(4):
        at = given[step * micros : (step + 1) * micros]
        train(net, loop, at)
        net.gns.collect()
        found.append([net.gns.raw_sqr_avg[0], net.gns.raw_var_avg[0]])
        expected.append(multi_sample(at, scale=micros))

    thetas = [0.999**micros] * 4
    running = [
        [smoothed(column[: n + 1], thetas[: n + 1]) for column in zip(*expected, strict=True)]
        for n in range(4)
    ]
    assert np.array(running) == pytest.approx(np.array(found))


def test_the_noise_of_single_gradients_is_that_of_two_steps_in_a_row(enter):
    net, _ = wrap(sizes=(3, 4))
    given = gradients(2, 5, 3, 4)
    train(net, enter(Loop(current_local_bsz=16, batch_size=8)), given)
    net.gns.collect()

    pairs = [
        (
            sum(a @ b for a, b in zip(one, two, strict=True)),  # g . g'
            2.0
            * sum(np.sum((a - b) ** 2) for a, b in zip(one, two, strict=True))
            / 2,  # accum_scale |g - g'|^2 / 2
        )
        for one, two in itertools.pairwise(given)
    ]
    thetas = [0.999**4] * 4
    expected = [smoothed(column, thetas) for column in zip(*pairs, strict=True)]
    assert net.gns.estimator.biased
    assert expected == pytest.approx([net.gns.raw_sqr_avg[0], net.gns.raw_var_avg[0]])


def test_steps_between_measured_ones_are_missing_only_as_age(enter):
    net, _ = wrap(gns_every=4)
    net.gns.estimator.samples = 64
    loop = enter(Loop(accumulation_steps=1, current_local_bsz=4))
    given = gradients(3, 18, 3)
    train(net, loop, given)
    net.gns.collect()

    measured = [multi_sample(given[i : i + 2], scale=1)[0] for i in (0, 8, 16)]
    assert smoothed(measured, [0.999, 0.999**4, 0.999**4]) == pytest.approx(net.gns.raw_sqr_avg[0])


def test_single_gradients_are_kept_only_before_a_measured_step(enter):
    net, _ = wrap(gns_every=4)
    net.gns.estimator.samples = 64
    given = gradients(4, 9, 3)
    train(net, enter(Loop()), given)
    net.gns.collect()

    pairs = [given[3][0] @ given[4][0], given[7][0] @ given[8][0]]
    thetas = [0.999**2, 0.999 ** (2 * 4)]
    assert smoothed(pairs, thetas) == pytest.approx(net.gns.raw_sqr_avg[0])


def test_gradients_of_two_batch_sizes_are_no_pair(enter):
    net, _ = wrap()
    train(net, enter(Loop()), gradients(4, 1, 3))
    train(net, enter(Loop(replicas=2)), gradients(5, 1, 3))

    assert not net.gns.collect()


def test_adam_s_noise_is_that_of_gradients_divided_by_its_second_moments(enter):
    net, _ = wrap(torch.optim.AdamW, gns_every=1)
    loop = enter(Loop(accumulation_steps=1))
    given = gradients(5, 16, 3)
    expected, moments = [], np.zeros(3)
    for step in range(8):
        pair = given[2 * step : 2 * step + 2]
        divisor = np.sqrt(moments / (1 - 0.999**step)) + 1e-8 if step >= 5 else 1.0
        expected.append(multi_sample([[g[0] / divisor] for g in pair], scale=2)[0])
        moments = 0.999 * moments + 0.001 * mean(pair)[0] ** 2
    train(net, loop, given)
    net.gns.collect()

    assert smoothed(expected, [0.999**2] * 8) == pytest.approx(net.gns.raw_sqr_avg[0])


def test_the_shares_of_replicas_in_adam_s_lengths_add_up_to_them(enter):
    net, _ = wrap(torch.optim.AdamW, sizes=(30,))
    train(net, enter(Loop(accumulation_steps=1)), gradients(5, 16, 30))
    (weight,) = net.module.weights
    whole, *shares = [
        sum(map(float, net.gns._product(weight, weight.grad, weight.grad, share)))
        for share in [(0, 1), (0, 3), (1, 3), (2, 3)]
    ]

    assert whole == pytest.approx(sum(shares))
    assert whole > 2 * max(shares)


def test_adam_begins_anew_with_another_batch_size_and_sgd_does_not(enter):
    steps = {}
    for optimizer in (torch.optim.Adam, torch.optim.AdamW):
        net, _ = wrap(optimizer, name=optimizer.__name__)
        train(net, enter(Loop()), gradients(6, 4, 3))
        train(net, enter(Loop(replicas=2)), gradients(6, 1, 3))
        train(net, enter(Loop(replicas=2, missing=6)), gradients(6, 1, 3))  # the end of a pass
        (state,) = net.optimizer.state.values()
        steps[optimizer.__name__] = float(state["step"])
    net, _ = wrap(lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9), name="sgd")
    train(net, enter(Loop()), gradients(6, 4, 3))
    before = next(iter(net.optimizer.state.values()))["momentum_buffer"]
    train(net, enter(Loop(replicas=2)), gradients(6, 1, 3))

    assert {"Adam": 2.0, "AdamW": 2.0} == steps
    assert before is next(iter(net.optimizer.state.values()))["momentum_buffer"]


def test_groups_have_their_own_noise(enter):
    plane = Plane(3, 4)
    one, two = plane.weights
    optimizer = torch.optim.SGD([{"params": [two]}, {"params": [one], "lr": 0.2}], lr=0.1)
    net = AdaptiveDataParallel(plane, optimizer, name="groups")
    given = gradients(7, 2, 3, 4)
    train(net, enter(Loop(accumulation_steps=1)), given)
    net.gns.collect()

    expected = [multi_sample([[g[part]] for g in given], scale=2)[0] for part in (1, 0)]
    assert expected == pytest.approx(net.gns.raw_sqr_avg)


@pytest.mark.parametrize("micros", [1, 4])
def test_planted_noise_is_found_while_a_quadratic_is_minimised(enter, micros):
    """McCandlish et al., section 2.2: phi = tr(Sigma) / |G|^2, here 200 x 0.5^2 / 200 at each step.

    The weights stay where they are, so that the gradients of two steps are as those of one.
    """
    random = torch.Generator().manual_seed(0)
    plane = Plane(200)
    net = AdaptiveDataParallel(plane, torch.optim.SGD(plane.parameters(), lr=0.0), name="quadratic")
    loop = enter(Loop(accumulation_steps=micros - 1, current_local_bsz=32 // micros, batch_size=32))
    for _ in range(80):
        for _ in loop.micro_batches():
            noise = torch.randn(200, dtype=torch.float64, generator=random)
            noise *= 0.5 * micros**0.5  # of a micro-batch, so that it is 0.5 of M0
            net.optimizer.zero_grad()
            (((net.module.weights[0] - 1) ** 2).sum() / 2 + net([noise])).backward()
            net.optimizer.step()

    sqr, var = net.gradient_stats
    assert (200.0, 200 * 0.25) == pytest.approx((sqr, var), rel=0.05)


# The factor of S = 4 where sqr is 0.5 and var 1, in the step at each progress. M0 is 8: LEGW warms
# up for 1 epoch x S = 8 steps of it.
RULES = {
    AdaScale: lambda progress: 2.0,
    AdamScale: lambda progress: 2.0**0.5,
    LinearScale: lambda progress: 4.0,
    SqrtScale: lambda progress: 2.0,
    functools.partial(LEGWScale, 1, 16): lambda progress: 2.0 * min(1.0, progress / 8),
}


def numpy_sgd(weight, gradient, state, lr):
    state["m"] = 0.9 * state.get("m", 0.0) + gradient
    return weight - lr * state["m"]


def numpy_adam(weight, gradient, state, lr, decay=0.0):
    state["t"] = t = state.get("t", 0) + 1
    state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * gradient
    state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * gradient**2
    step = state["m"] / (1 - 0.9**t) / (np.sqrt(state["v"] / (1 - 0.999**t)) + 1e-8)
    return weight - lr * decay * weight - lr * step


def numpy_adamw(weight, gradient, state, lr):
    return numpy_adam(weight, gradient, state, lr, decay=0.1)


@pytest.mark.parametrize(
    "rule", RULES, ids=["AdaScale", "AdamScale", "LinearScale", "SqrtScale", "LEGWScale"]
)
@pytest.mark.parametrize(
    ("make", "step"),
    [
        (lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9), numpy_sgd),
        (torch.optim.Adam, numpy_adam),
        (lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.1), numpy_adamw),
    ],
    ids=["SGD", "Adam", "AdamW"],
)
def test_steps_are_those_of_numpy_with_the_learning_rate_of_the_rule(enter, rule, make, step):
    net, _ = wrap(make, scaling_rule=rule(), gns_every=10**6)
    net.gns.estimator.observe([1.5], [1.0], count=2, scale=2.0)  # sqr 0.5, var 1
    net.gns.estimator.samples = 64
    net.gns._made = 1  # the next that is due is far
    given = gradients(8, 12, 3)
    net.gns.start(2.0, 2)
    train(net, enter(Loop(current_local_bsz=16, accumulation_steps=1)), given)

    expected, state = np.zeros(3), {}
    for at in range(0, 12, 2):  # a step is worth 2 of M0, two gradients
        factor = RULES[rule](progress=at)
        expected = step(expected, mean(given[at : at + 2])[0], state, lr=0.1 * factor)
    assert expected == pytest.approx(weights(net)[0])
    assert [0.1] == [group["lr"] for group in net.optimizer.param_groups]


def test_the_rule_of_adam_is_adamscale_and_that_of_others_adascale():
    rules = [
        type(wrap(optimizer, name=str(optimizer))[0].scaling_rule)
        for optimizer in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
    ]

    assert [AdaScale, AdamScale, AdamScale] == rules


def test_progress_grows_by_the_gain_of_each_step(enter):
    net, _ = wrap(gns_every=10**6)
    net.gns.estimator.observe([1.5], [1.0], count=2, scale=2.0)
    net.gns.estimator.samples, net.gns._made = 64, 1
    train(net, enter(Loop(current_local_bsz=16, accumulation_steps=1)), gradients(9, 6, 3))

    assert (2.0, 6.0) == pytest.approx((net.gain, net.progress))


@pytest.mark.parametrize(("missing", "gain"), [(0, 2.0), (16, 1.5), (24, 1.0), (28, 1.0)])
def test_a_step_that_lacks_records_is_worth_those_it_has(enter, missing, gain):
    """AdaScale, section 3: gain = (var + sqr) / (var / S + sqr); here var 1, sqr 0.5, M0 8."""
    net, _ = wrap(gns_every=10**6)
    net.gns.estimator.observe([1.5], [1.0], count=2, scale=2.0)
    net.gns.estimator.samples, net.gns._made = 64, 1
    loop = Loop(current_local_bsz=16, accumulation_steps=1, missing=missing)
    train(net, enter(loop), gradients(9, 2, 3))

    assert gain == pytest.approx(net.progress)


def test_a_step_is_never_scaled_by_its_own_gradient(enter):
    net, _ = wrap(lr=1.0)
    given = [[np.array([9.0, 0, 0])], [np.array([0, 9.0, 0])]]
    train(net, enter(Loop(accumulation_steps=1, current_local_bsz=8)), given)

    assert -mean(given)[0] == pytest.approx(weights(net)[0], rel=1e-5)


def plain_step(net):
    net.optimizer.zero_grad()
    net([torch.ones(3, dtype=torch.float64)]).backward()
    net.optimizer.step()


def test_outside_of_a_loop_it_trains_as_plain_data_parallelism_and_says_so_once(enter, caplog):
    """The first step of AdaptDL's tutorial trains so, before there is an adaptive loader."""
    net, _ = wrap(scaling_rule=LinearScale())
    plain_step(net)
    plain_step(net)
    after_two = weights(net)[0].tolist()
    train(net, enter(Loop(current_local_bsz=16)), [[np.ones(3)]])
    enter(None)
    plain_step(net)

    assert [-0.2] * 3 == pytest.approx(after_two)
    assert [-0.5] * 3 == pytest.approx(weights(net)[0])  # the loop's step was scaled by 2
    assert 1 == caplog.text.count("trains outside of a loop")


def test_gradients_of_a_step_that_a_loop_left_half_done_do_not_leak_out_of_it(enter):
    net, _ = wrap(scaling_rule=LinearScale())
    loop = enter(Loop(current_local_bsz=8, accumulation_steps=1))
    next(iter(loop.micro_batches()))
    net([torch.full((3,), 9.0, dtype=torch.float64)]).backward()
    enter(None)
    plain_step(net)

    assert [-0.1] * 3 == pytest.approx(weights(net)[0])


def test_a_model_that_is_told_to_stop_outside_of_a_loop_stops(enter):
    net, _ = wrap()
    collective.preemption().requested = True

    with pytest.raises(SystemExit) as left:
        plain_step(net)
    assert 143 == left.value.code


def test_a_buffer_that_a_transpose_left_is_broadcast(enter):
    plane = Plane(3)
    plane.register_buffer("table", torch.arange(10.0).reshape(5, 2).unsqueeze(0).transpose(0, 1))
    net = AdaptiveDataParallel(plane, torch.optim.SGD(plane.parameters(), lr=0.1))
    train(net, enter(Loop()), [[np.ones(3)]])

    assert torch.equal(torch.arange(10.0), plane.table.flatten())


def test_the_name_may_stand_where_older_adaptdl_had_it(enter):
    nets = []
    for name in ("netD", "netG"):
        plane = Plane(3)
        optimizer = torch.optim.SGD(plane.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        nets.append(AdaptiveDataParallel(plane, optimizer, schedule, name))

    assert [("netD", None), ("netG", None)] == [(net._state.name, net.mp_scaler) for net in nets]
    assert nets[0].module is nets[0]._state.model


def heard(net, loop, passes=1):
    """Tell whether there are hooks in the backward passes of such steps, by pass."""
    found = []
    for given in gradients(17, passes, 3):
        train(net, loop, [given])
        found.append(bool(net.module.weights[0]._backward_hooks))
    return found


def test_nothing_listens_where_nothing_is_measured_or_kept(enter):
    net, _ = wrap(gns_every=4)
    net.gns.estimator.samples = 64
    found = heard(net, enter(Loop()), 9)

    # Steps 0, 4 and 8 are measured, together with the gradients of 3 and 7.
    assert [True, False, False, True, True, False, False, True, True] == found


def test_what_needs_its_hooks_has_them_after_a_pass_without(enter):
    found = {}
    for name, changes in {
        "another batch": {"current_local_bsz": 16},
        "uneven": {"weight": 0.5},
        "accumulating": {"accumulation_steps": 1, "current_local_bsz": 4},
        "another loader": {"batch_size": 16, "current_local_bsz": 16},
        "not training yet": {"training": False},
        "the same": {},
    }.items():
        net, _ = wrap(gns_every=10**6, name=name)
        net.gns.estimator.samples, net.gns._made = 64, 1
        without = heard(net, enter(Loop()), 2)[-1]
        found[name] = (without, *heard(net, enter(Loop(**({"training": True} | changes)))))

    assert {**dict.fromkeys(found, (False, True)), "the same": (False, False)} == found


def test_hooks_of_the_user_s_own_stay(enter):
    net, _ = wrap(gns_every=10**6)
    net.gns.estimator.samples, net.gns._made = 64, 1
    seen = []
    net.module.weights[0].register_hook(lambda gradient: seen.append(1))
    heard(net, enter(Loop()), 3)

    assert [1, 1, 1] == seen


def test_outside_of_a_loop_a_model_can_be_applied(enter):
    net, _ = wrap()

    assert 0.0 == net([torch.ones(3, dtype=torch.float64)]).item()


def test_the_first_gradient_makes_a_loop_one_that_trains(enter):
    net, _ = wrap()
    loop = enter(Loop())
    net([torch.ones(3, dtype=torch.float64)])
    before = loop.training
    net([torch.ones(3, dtype=torch.float64)]).backward()

    assert (False, True) == (before, loop.training)


def test_gradients_of_a_step_that_was_broken_off_are_dropped(enter):
    net, _ = wrap(lr=1.0)
    loop = Loop(accumulation_steps=2, batch_size=24)
    train(net, enter(loop), [[np.full(3, 100.0)], [np.full(3, 100.0)]])
    train(net, loop, [[np.full(3, 2.0)]] * 3)

    assert [-2.0] * 3 == pytest.approx(weights(net)[0])


@pytest.mark.parametrize("zero", ["optimizer", "model"])
def test_gradients_are_zeroed_after_a_step_and_not_within_one(enter, zero):
    net, optimizer = wrap()
    loop = enter(Loop(accumulation_steps=1))
    left = []
    for _ in loop.micro_batches():
        net([torch.ones(3, dtype=torch.float64)]).backward()
        optimizer.step()
        (optimizer if zero == "optimizer" else net).zero_grad()
        left.append(net.module.weights[0].grad is not None)

    assert [True, False] == left


def test_an_uneven_share_counts_by_its_weight(enter):
    net, _ = wrap(lr=1.0)
    loop = enter(Loop())
    loop.weight = 0.25
    train(net, loop, [[np.full(3, 4.0)]])

    assert [-1.0] * 3 == pytest.approx(weights(net)[0])


def test_an_infinite_gradient_leaves_the_estimate_alone(enter):
    net, _ = wrap(lr=0.0)
    loop = enter(Loop(accumulation_steps=1))
    given = gradients(10, 2, 3)
    train(net, loop, given)
    train(net, loop, [[np.full(3, np.inf)], *given[:1]])
    net.gns.collect()

    found = (net.gns.raw_sqr_avg[0], net.gns.raw_var_avg[0])
    assert multi_sample(given, 2) == pytest.approx(found)


def scaled_step(net, scaler, loop, given):
    for number, _ in enumerate(loop.micro_batches()):
        net.optimizer.zero_grad()
        scaler.scale(net([torch.tensor(part) for part in given[number]])).backward()
        scaler.step(net.optimizer)
        scaler.update()


def test_gradients_are_measured_without_the_factor_of_the_gradscaler(enter):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    net, _ = wrap(mp_scaler=scaler, lr=1.0)
    given = gradients(11, 2, 3)
    scaled_step(net, scaler, enter(Loop(accumulation_steps=1)), given)
    net.gns.collect()

    assert multi_sample(given, 2) == pytest.approx(net.gradient_stats)
    assert -mean(given)[0] == pytest.approx(weights(net)[0])


def test_a_step_that_the_gradscaler_skips_is_no_progress_and_is_forgotten(enter):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    net, _ = wrap(mp_scaler=scaler, lr=1.0)
    loop, given = enter(Loop(accumulation_steps=1)), gradients(11, 2, 3)
    scaled_step(net, scaler, loop, [[np.full(3, np.inf)], *given[:1]])
    skipped = (net.progress, scaler.get_scale())
    scaled_step(net, scaler, loop, given)

    assert (0.0, 512.0) == skipped
    assert -mean(given)[0] == pytest.approx(weights(net)[0])


def saved(net):
    buffer = io.BytesIO()
    net._state.sync()
    net._state.save(buffer)
    buffer.seek(0)
    return buffer


def rich(name, optimizer=torch.optim.AdamW):
    """A model with everything that is kept."""
    plane = Plane(3)
    optimizer = optimizer(plane.parameters(), lr=np.float64(0.1))
    scheduler = MultiStepLR(optimizer, [2, 3])
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    return AdaptiveDataParallel(plane, optimizer, scheduler, scaler, name=name)


def test_a_restored_model_goes_on_as_if_nothing_had_happened(enter):
    one, two = rich("one"), rich("two")
    loop, given = enter(Loop(accumulation_steps=1, current_local_bsz=16)), gradients(12, 40, 3)
    for at in range(0, 20, 2):
        scaled_step(one, one.mp_scaler, loop, given[at : at + 2])
    one.lr_scheduler.step()
    two._state.load(saved(one))
    for net in (one, two):
        for at in range(20, 40, 2):
            scaled_step(net, net.mp_scaler, loop, given[at : at + 2])
            net.lr_scheduler.step()

    assert weights(one)[0].tolist() == weights(two)[0].tolist()
    assert saved(one).getvalue() == saved(two).getvalue()
    assert one.progress == two.progress > 20


def test_a_checkpoint_of_another_model_is_refused_in_a_sentence(enter):
    one, other = wrap(name="one")[0], wrap(sizes=(3, 4), name="other")[0]

    with pytest.raises(CheckpointError, match="checkpoint of 'other' does not fit the model"):
        other._state.load(saved(one))


def test_a_checkpoint_that_would_run_code_is_refused(enter, tmp_path):
    class Evil:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").touch, ())

    buffer = io.BytesIO()
    torch.save({"model": Evil()}, buffer)
    buffer.seek(0)
    with pytest.raises(CheckpointError):
        wrap()[0]._state.load(buffer)

    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda o: CosineAnnealingLR(o, 10),
        lambda o: MultiStepLR(o, [3]),
        lambda o: OneCycleLR(o, 1.0, total_steps=10),
        lambda o: LambdaLR(o, lambda epoch: np.sqrt(epoch)),
    ],
)
def test_schedulers_of_torch_can_be_kept_and_come_before_or_after_the_model(enter, scheduler):
    plane = Plane(3)
    optimizer = torch.optim.SGD(plane.parameters(), lr=0.1)
    net = AdaptiveDataParallel(plane, optimizer, scheduler(optimizer), name="before")
    train(net, enter(Loop()), gradients(13, 2, 3))
    net.lr_scheduler.step()
    scheduler(optimizer)
    train(net, enter(Loop()), gradients(13, 1, 3))
    kept, weights = saved(net), plane.state_dict()
    weights = {name: value.clone() for name, value in weights.items()}
    train(net, enter(Loop()), gradients(13, 1, 3))

    net._state.load(kept)

    assert all(torch.equal(value, weights[name]) for name, value in plane.state_dict().items())


def test_a_scheduler_that_no_checkpoint_can_hold_is_refused_at_once():
    plane = Plane(3)
    optimizer = torch.optim.SGD(plane.parameters(), lr=0.1)
    scheduler = CosineAnnealingLR(optimizer, 10)
    scheduler.mine = Loop()

    with pytest.raises(UsageError, match="CosineAnnealingLR cannot be kept in a checkpoint"):
        AdaptiveDataParallel(plane, optimizer, scheduler)


def test_two_models_need_two_names():
    wrap(name="one")

    with pytest.raises(ValueError, match="'one'"):
        wrap(name="one")


def test_models_are_known_by_name_and_age():
    one, two = wrap(name="one")[0], wrap(name="two")[0]

    assert "two" == models().newest({"one", "two"})
    assert [one, two, None] == [models().named(name) for name in ("one", "two", "none")]


def test_the_job_is_told_the_statistics_of_its_gradients(enter, monkeypatch):
    told = []
    monkeypatch.setattr(profile, "set_gradient_stats", lambda sqr, var, _: told.append((sqr, var)))
    net, _ = wrap()
    given = gradients(16, 4, 3)
    train(net, enter(Loop(accumulation_steps=1)), given)

    assert [multi_sample(given[:2], 2)] == [pytest.approx(stats) for stats in told]


def test_scalars_are_written_below_a_prefix(enter):
    net, _ = wrap()
    train(net, enter(Loop(accumulation_steps=1, current_local_bsz=16)), gradients(15, 2, 3))
    written = {}

    class Writer:
        def add_scalar(self, tag, value, step):
            written[tag] = (value, step)

    net.to_tensorboard(Writer(), 7, "net")

    assert {
        "net/Gradient_Norm_Sqr": (1.0, 7),
        "net/Gradient_Variance": (1e-6, 7),
        "net/Gain": (pytest.approx(1.0, abs=1e-5), 7),
        "net/Learning_Rate_Factor": (pytest.approx(1.0, abs=1e-5), 7),
        "net/Accum_Scale": (2.0, 7),
        "net/Accum_Count": (2, 7),
        "net/Progress": (pytest.approx(1.0, abs=1e-5), 7),
    } == written


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_noise_is_the_oracle_s_on_a_cuda_device(enter):
    plane = Plane(3).cuda()
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    optimizer = torch.optim.SGD(plane.parameters(), lr=0.1)
    net = AdaptiveDataParallel(plane, optimizer, mp_scaler=scaler, device_ids=[0])
    given = gradients(16, 2, 3)
    for number in enter(Loop(accumulation_steps=1)).micro_batches():
        scaler.scale(net([torch.tensor(part).cuda() for part in given[number]])).backward()
        scaler.step(optimizer)
        scaler.update()
    net.gns.collect()

    assert multi_sample(given, 2) == pytest.approx(net.gradient_stats)
