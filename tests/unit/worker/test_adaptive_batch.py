"""The minibatch that follows the goodput: what is measured, chosen, and moves with the state."""

import itertools
import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from edl.adaptive.noise_estimator import EVERY, FEW
from edl.adaptive.step_times import Times
from edl.common import storage
from edl.common.clock import FakeClock
from edl.common.errors import EdlError
from edl.common.settings import JobSettings
from edl.goodput import GoodputFunction, PerfParams
from edl.nn import SGD, Adam, AdamW, StepDecay
from edl.proto import master_pb2 as pb
from edl.worker.group import adaptive_batch, follower
from edl.worker.group.adaptive_batch import AdaptiveBatch, Measured, sizes
from edl.worker.group.allreduce import AllReduceTrainer
from edl.worker.group.follower import Chooser, Meter, best
from edl.worker.group.slices import Slice
from edl.worker.group.state import GroupState
from edl.worker.model import model_spec
from edl.worker.task_reader import Lease

PERF = PerfParams(0.1, 0.001, 0.05, 0.01, 0.02, 0.003, 1.5)


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# -- the choice


def goodput_of(sqr, var, init, perf, nodes, members, total, local):
    """Pollux, section 3: "GOODPUT_t(a, m, s) = THROUGHPUT(a, m, s) x EFFICIENCY_t(M(a, m, s))"."""
    share = -(-total // members)
    passes = -(-share // local) if local else 1
    m = -(-share // passes)
    grad_s = perf.alpha_c + perf.beta_c * m
    more = max(members - 2, 0)
    sync_s = 0.0
    if members > 1:
        alpha, beta = (perf.alpha_r, perf.beta_r) if nodes == 1 else (perf.alpha_n, perf.beta_n)
        sync_s = alpha + beta * more
    step_s = (passes - 1) * grad_s + (grad_s**perf.gamma + sync_s**perf.gamma) ** (1 / perf.gamma)
    total = members * m * passes
    phi = init * var / sqr
    return total / step_s * (phi + init) / (phi + total)


@given(
    sqr=st.floats(1e-6, 10),
    var=st.floats(1e-6, 1e3),
    members=st.integers(1, 9),
    several=st.booleans(),
    local=st.sampled_from([0, 0, 5, 16]),
    tasks=st.sampled_from([1, 4, 8, 32]),
    data=st.data(),
)
def test_the_best_goodput_is_chosen_within_bounds(sqr, var, members, several, local, tasks, data):
    least, nodes = 16, min(2, members) if several else 1
    most = data.draw(st.integers(least, least * tasks))
    among = sizes(least * tasks, least, most)
    present = data.draw(st.sampled_from(among))

    def goodput(size):
        return goodput_of(sqr, var, least, PERF, nodes, members, size, local)

    chosen, gain = best(
        GoodputFunction(PERF, (sqr, var), least),
        among,
        nodes=nodes,
        members=members,
        present=present,
        local=local,
    )

    assert least <= chosen <= min(most, 2 * present)
    top = max(goodput(size) for size in among if size <= 2 * present) / goodput(present)
    if chosen == present:  # "another one is adopted if it promises more than 5 % more"
        assert gain == 1.0
        assert top <= 1.05 * (1 + 1e-9)
    else:
        assert gain > 1.05
        assert goodput(chosen) / goodput(present) == pytest.approx(top, rel=1e-9)
        assert gain == pytest.approx(top, rel=1e-9)


def test_noise_says_how_far_it_grows():
    """McCandlish et al., section 2.2: batches well below the noise scale B = tr(Sigma) / |G|^2 are
    nearly as efficient as larger ones; here M0 var / sqr."""
    chosen = []
    for noise_scale in (1e-3, 64, 1e6):
        goodput = GoodputFunction(PERF, (1.0, noise_scale / 16), 16)
        size = 16
        for _ in range(10):
            size, _ = best(goodput, sizes(1024, 16, 512), nodes=1, members=2, present=size, local=0)
        chosen.append(size)

    assert chosen[0] == 16 < chosen[1] < chosen[2] == 512


def test_it_shrinks_when_the_noise_does():
    goodput = GoodputFunction(PERF, (1.0, 0.1), 16)

    assert best(goodput, sizes(512, 16, 512), nodes=1, members=2, present=512, local=0)[0] < 64


@given(least=st.integers(1, 64), tasks=st.integers(1, 64), data=st.data())
def test_minibatches_cut_a_task_evenly(least, tasks, data):
    records = least * tasks
    most = data.draw(st.integers(least, records))

    for size in sizes(records, least, most):
        assert least <= size <= most
        cuts = -(-records // size)
        assert -(-records // cuts) == size, "as even as whole records can be"


# -- what follows from it


def known(sqr=0.5, var=1.0, **more):
    """Return a minibatch that knows the noise that is given, at M0 = 16."""
    batch = AdaptiveBatch(**{"least": 16, "most": 128, "task_records": 128, **more})
    # Of two gradients at S = 1: sqr = 2 T - L, var = L - T.
    batch.advance(0, 16, measured(local=sqr + 2 * var, total=sqr + var))
    return batch


def measured(local=2.0, total=1.5, count=2, chosen=0, times=None, key=(1, 2, 8)):
    return Measured(local, total, count, chosen, times or Times(), key)


def state_of(batch, optimizer, version=0):
    model = nn.Linear(3, 1)
    state = GroupState(model, model_spec(model, optimizer, 0), batch)
    state.version = version
    return state


def test_the_learning_rate_of_sgd_follows_by_the_gain():
    """AdaScale, section 3: r_t = E[sigma^2 + mu^2] / E[sigma^2 / S + mu^2]."""
    state = state_of(known(), SGD(lr=0.1))

    found = [state.learning_rate(records) / 0.1 for records in (5, 16, 32, 64, 256)]

    assert [1.0, 1.0, 1.5, 2.0, 8 / 3] == pytest.approx(found)


@pytest.mark.parametrize("optimizer", [Adam(lr=0.1), AdamW(lr=0.1)])
def test_the_learning_rate_of_adam_follows_by_its_square_root(optimizer):
    settings = JobSettings(batch_rule="adaptive", minibatch_size=16, max_minibatch_size=128)
    batch = adaptive_batch.make(settings, optimizer)
    batch.advance(0, 16, measured(local=2.5, total=1.5))
    state = state_of(batch, optimizer)

    assert [1.0, 2**0.5] == pytest.approx([state.learning_rate(n) / 0.1 for n in (16, 64)])


def test_a_schedule_goes_by_records():
    """A definition writes it in steps of the initial minibatch."""
    batch = AdaptiveBatch(least=16, most=128, task_records=128)
    state = state_of(batch, SGD(lr=StepDecay(lr=1.0, step_size=10, gamma=0.5)))
    rates = []
    for records in (16, 16, 64, 48, 9, 128, 16):  # 9: the rest of a source
        rates.append(state.learning_rate(16))
        batch.advance(state.version, records, None)
        state.version += 1

    assert [1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5] == rates
    assert batch.schedule_step == 1 + 1 + 4 + 3 + 1 + 8 + 1


def test_without_the_rule_there_is_none():
    assert state_of(None, SGD(lr=0.1)).learning_rate(64) == 0.1


# -- when


def test_noise_and_times_are_measured_in_turns():
    batch = AdaptiveBatch(least=16, most=128, task_records=128)
    noisy, timed = [], []
    for version in range(300):
        noisy.append(batch.measures_noise(version))
        timed.append(batch.times_step(version))
        batch.advance(version, 16, measured() if noisy[-1] else None)

    assert [v % 2 == 0 for v in range(128)] == noisy[:128]  # while there are few estimates
    assert not any(a and b for a, b in zip(noisy, timed, strict=True))
    # then once in so many, as edl.adaptive does
    spans = [slice(at, at + EVERY) for at in range(2 * FEW, 2 * FEW + 5 * EVERY, EVERY)]
    assert [(1, 1)] * 5 == [(sum(noisy[span]), sum(timed[span])) for span in spans]


def test_moments_of_adam_are_waited_for():
    batch = AdaptiveBatch(least=16, most=128, task_records=128, adam=True)

    assert [6, 8] == [v for v in range(10) if batch.measures_noise(v)]


def test_it_is_chosen_at_fixed_points_and_when_the_group_is_another():
    batch = AdaptiveBatch(least=16, most=128, task_records=128)
    for version in range(FEW):
        assert not batch.is_to_choose(version, 2)  # too little is known
        batch.advance(version, 16, measured())

    assert batch.is_to_choose(FEW, 2)
    batch.advance(FEW, 16, measured(chosen=32))
    assert batch.minibatch == 32
    due = [v for v in range(FEW, FEW + 200) if batch.is_to_choose(v, 2)]
    assert due == [*range(FEW + 100, FEW + 200)]
    assert batch.is_to_choose(FEW + 1, 3)


def test_the_noise_of_a_minibatch_without_two_gradients_is_not_taken_in():
    batch = AdaptiveBatch(least=16, most=128, task_records=128)

    batch.advance(0, 16, measured(count=1, times=Times(0, 0.0, 1, 0.5)))

    assert batch.estimator.samples == 0
    assert batch.times == {(1, 2, 8): Times(0, 0.0, 1, 0.5)}


def trained(batch):
    batch.advance(1, 16, measured(times=Times(2, 0.25, 1, 0.5, 1, 0.125), chosen=32))
    batch.advance(2, 64, None)
    return batch


def test_a_latecomer_gets_it_with_the_state():
    state, other = (
        state_of(AdaptiveBatch(least=16, most=128, task_records=128), SGD(), v) for v in (3, -1)
    )
    trained(state.batch)

    other.unpack(state.pack())

    assert state.batch.state_dict() == other.batch.state_dict()
    assert other.batch.minibatch == 32


@pytest.mark.parametrize(("least", "most", "kept"), [(16, 128, 32), (16, 24, 24), (8, 128, 8)])
def test_a_checkpoint_keeps_it_within_the_bounds_that_are_given_now(tmp_path, least, most, kept):
    state = state_of(trained(AdaptiveBatch(least=16, most=128, task_records=128)), SGD(), 3)
    files = state.write(tmp_path / "c")
    about = {"version": 3, "num_shards": 1, "num_slots": 1024, "files": files}
    storage.write_manifest(tmp_path / "c", **about, model=json.loads(state.spec.to_json()))
    other = state_of(AdaptiveBatch(least=least, most=most, task_records=128), SGD(), -1)

    other.begin()
    other.read(str(tmp_path / "c"), ledger=True)

    assert other.batch.minibatch == kept
    same = least == 16
    assert (other.batch.estimator.samples == 1, len(other.batch.times) == 1) == (same, same)
    assert other.batch.schedule_step == (1 + 4 if same else 3)


def test_a_copy_is_not_touched_by_the_steps_that_follow():
    state = state_of(trained(AdaptiveBatch(least=16, most=128, task_records=128)), SGD(), 3)
    twin, before = state.copy(), state.batch.state_dict()

    trained(state.batch)

    assert twin.batch.state_dict() == before != state.batch.state_dict()


# -- what is measured


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 1, bias=False)

    def forward(self, inputs):
        return self.out(inputs).squeeze(1)


def member(optimizer, least=12, **more):
    def make():
        torch.manual_seed(7)
        return Line()

    adam = isinstance(optimizer, Adam)
    trainer = AllReduceTrainer(
        make,
        functional.mse_loss,
        model_spec(make(), optimizer, 7),
        device=torch.device("cpu"),
        batch=AdaptiveBatch(least=least, most=8 * least, task_records=8 * least, adam=adam),
    )
    trainer.state.begin()
    trainer.enter(1)
    clock = FakeClock()
    trainer.meter = Meter(
        trainer.state, more.get("chooser", Chooser(clock)), clock, rank=0, members=1, nodes=1
    )
    return trainer, clock


def piece(inputs, labels, *counts):
    parts = [
        (x, y, len(x), None)
        for x, y in zip(inputs.split(list(counts)), labels.split(list(counts)), strict=True)
    ]
    lease = Lease(pb.Task(id=1, kind=pb.TRAIN, end=100))
    return Slice(lease, 0, len(inputs), len(inputs), total=len(inputs), parts=parts)


def drawn(count, number=0):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(count, 3, generator=generator), torch.randn(count, generator=generator)


def gradient(weight, inputs, labels):
    """Return the gradient of the mean squared error, in float64."""
    w, x, y = (np.asarray(t, np.float64) for t in (weight, inputs, labels))
    return 2 * ((x @ w - y)[:, None] * x).mean(0)


def test_lengths_are_those_of_uneven_gradients_and_of_their_mean():
    ours, _ = member(SGD(lr=0.1))
    inputs, labels = drawn(12)
    weight = ours.model.out.weight.detach().numpy()[0].copy()

    found = ours.reduce(piece(inputs, labels, 5, 5, 2), False).measured

    each = zip(inputs.split([5, 5, 2]), labels.split([5, 5, 2]), strict=True)
    lengths = [(gradient(weight, x, y) ** 2).sum() for x, y in each]
    assert found.count == 3
    assert found.local == pytest.approx(np.average(lengths, weights=[5, 5, 2]), rel=1e-5)
    assert found.total == pytest.approx((gradient(weight, inputs, labels) ** 2).sum(), rel=1e-5)


def test_each_of_two_members_tells_its_share_of_the_lengths():
    """The member has 12 records of a minibatch of 16; the other member has the rest."""
    ours, clock = member(SGD(lr=0.1))
    ours.enter(2)
    inputs, labels = drawn(12)
    weight = ours.model.out.weight.detach().numpy()[0].copy()
    own = piece(inputs, labels, 12)
    own.total = 16
    found = []
    for rank in range(2):
        ours.meter = Meter(ours.state, Chooser(clock), clock, rank=rank, members=2, nodes=1)
        step = ours.reduce(own, False)
        found.append(step.measured)

    local = 0.75 * (gradient(weight, inputs, labels) ** 2).sum()
    assert [local] * 2 == pytest.approx([each.local for each in found], rel=1e-5)
    (mean,) = step.gradients  # which both hold
    assert sum(each.total for each in found) == pytest.approx(float((mean**2).sum()), rel=1e-5)
    assert all(0 < each.total for each in found)


def test_the_estimate_of_uneven_gradients_is_unbiased():
    """McCandlish et al., appendix A.1: "an unbiased estimate of the true gradient norm and of the
    covariance": over all minibatches of 3 records out of a population of 3, in parts of 2 and 1."""
    x = torch.tensor([[1.0, 0.0, 0.5], [0.0, -2.0, 1.0], [1.5, 1.0, 0.0]])
    y = torch.tensor([0.5, -1.0, 2.0])
    ours, _ = member(SGD(lr=0.0), least=2)
    weight = ours.model.out.weight.detach().numpy()[0]
    sqrs, variances = [], []
    for records in itertools.product(range(3), repeat=3):
        which = list(records)
        step = ours.reduce(piece(x[which], y[which], 2, 1), False)
        batch = AdaptiveBatch(least=2, most=16, task_records=16)
        batch.advance(0, 3, step.measured)
        sqrs += batch.estimator.raw_sqr
        variances += batch.estimator.raw_var

    each = np.array([gradient(weight, x[i : i + 1], y[i : i + 1]) for i in range(3)])
    mean = each.mean(0)
    assert np.mean(sqrs) == pytest.approx((mean**2).sum(), rel=1e-5)
    assert np.mean(variances) == pytest.approx(((each - mean) ** 2).sum(1).mean() / 2, rel=1e-5)


def test_noise_of_adam_is_that_of_the_space_in_which_it_steps():
    ours, _ = member(Adam(lr=0.01))
    for number in range(8):
        ours.commit(ours.reduce(piece(*drawn(12, number), 12), False))
    inputs, labels = drawn(12, 8)
    weight = ours.model.out.weight.detach().numpy()[0].copy()
    state = ours.state.optimizer.state[ours.model.out.weight]
    by = np.sqrt(state["exp_avg_sq"].numpy()[0] / (1 - 0.999**8)) + 1e-8

    found = ours.reduce(piece(inputs, labels, 6, 6), False).measured

    assert found.total == pytest.approx(
        ((gradient(weight, inputs, labels) / by) ** 2).sum(), rel=1e-4
    )


def test_what_is_measured_changes_nothing_of_the_step():
    plain, _ = member(SGD(lr=0.1))
    watched, _ = member(SGD(lr=0.1))
    plain.meter = None

    for number in range(6):
        steps = [m.reduce(piece(*drawn(12, number), 5, 7), False) for m in (plain, watched)]
        assert (steps[0].measured is None, steps[1].measured is None) == (True, number % 2 == 1)
        for one, step in zip((plain, watched), steps, strict=True):
            step.measured = None
            one.commit(step)

    torch.testing.assert_close(plain.state_dict(), watched.state_dict(), rtol=0, atol=0)
    assert not watched.model.out.weight._backward_hooks


def test_passes_are_timed_by_whether_they_synchronise():
    class Slow(nn.Module):
        def forward(self, inputs, labels):
            clock.advance(len(inputs))
            return functional.mse_loss(inputs, labels)

    ours, clock = member(SGD(lr=0.0))
    ours._loss = Slow()
    for number in range(5):
        if number == 3:
            ours.enter(1)  # torch keeps what it was made of
        step = ours.reduce(piece(*drawn(12, number), 5, 7), False)
        clock.advance(1)
        ours.commit(step)

    # Of the five steps number 3 is timed: 0, 2 and 4 measure noise, 1 is too early in the round.
    ((key, times),) = ours.state.batch.times.items()
    assert (key, times) == ((1, 1, 12), Times(1, 5.0, 1, 8.0))


def test_one_alone_asks_for_two_passes_where_noise_is_measured():
    ours, clock = member(SGD())
    pair = Meter(ours.state, Chooser(clock), clock, rank=0, members=2, nodes=1)

    assert [True, False, True] == [ours.meter.splits(number) for number in range(3)]
    assert not pair.splits(0)


def test_a_choice_ends_the_round():
    answers = [0, 12, 24]
    chooser = SimpleNamespace(ask=lambda *about: answers.pop(0), fitted=PERF)
    ours, _ = member(SGD(), chooser=chooser)
    assert {"minibatch", "gain"} == ours.state.batch.scalars().keys()
    ends = []
    version = 0
    while answers:
        step = ours.reduce(piece(*drawn(12, version), 6, 6), False)
        if step.measured is not None and ours.state.batch.is_to_choose(version, 1):
            ends.append(step.ends_round)
            if len(ends) == 2:
                step.measured = None  # as if this had not been decided
        ours.commit(step)
        version += 1

    assert ends == [False, False, True]
    assert ours.state.batch.minibatch == 24
    told = ours.state.batch.scalars()  # of who has chosen, the model too
    assert PERF == tuple(told[f"step_{name}"] for name in PerfParams._fields)
    noise = ours.state.batch.estimator
    assert (noise.sqr, noise.var) == (told["noise_sqr"], told["noise_var"])


# -- thinking


class Thinker(Chooser):
    """A chooser that takes its time."""

    def __init__(self):
        super().__init__(FakeClock())
        self.go = threading.Event()

    def choose(self, batch, nodes, members):
        assert self.go.wait(300)
        return 10 * members

    def told(self, *about):
        self.go.set()
        while not (answer := self.ask(*about)):
            self._answer.result(300)
        return answer


def test_nobody_waits_for_the_choice():
    batch, chooser = known(), Thinker()

    assert 0 == chooser.ask(batch, 1, 2) == chooser.ask(batch, 1, 2)
    assert 20 == chooser.told(batch, 1, 2)


def test_what_was_thought_about_another_group_is_not_told():
    batch, chooser = known(), Thinker()
    chooser.ask(batch, 1, 2)
    chooser.go.set()
    chooser._answer.result(300)

    assert chooser.ask(batch, 1, 3) == 0
    assert chooser.told(batch, 1, 3) == 30


def test_an_error_in_thinking_is_told():
    class Stuck(Thinker):
        def choose(self, batch, nodes, members):
            raise EdlError("no way")

    with pytest.raises(EdlError, match="no way"):
        Stuck().told(known(), 1, 2)


def test_the_model_of_the_times_is_fitted_where_the_group_has_run_otherwise(monkeypatch):
    fits = []
    monkeypatch.setattr(follower, "fit", lambda times: fits.append(len(times)) or PERF)
    clock = FakeClock()
    chooser, batch = Chooser(clock), known()
    for size, seconds in ((8, 0), (8, 29), (16, 0), (16, 29), (16, 2)):
        clock.advance(seconds)
        batch.times[1, 2, size] = Times(0, 0.0, 1, 1.0)
        chooser.choose(batch, 1, 2)

    assert fits == [1, 2, 2]


def test_nothing_is_chosen_while_nothing_was_timed():
    assert Chooser(FakeClock()).choose(known(), 1, 2) == 0
