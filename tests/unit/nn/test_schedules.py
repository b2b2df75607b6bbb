"""Schedules: each equals its namesake of torch.optim.lr_scheduler, and survives JSON."""

import json
import math

import pytest
import torch
from torch.optim import lr_scheduler as theirs

from edl.common.errors import DefinitionError
from edl.nn import (
    SGD,
    Constant,
    Cosine,
    Exponential,
    MultiStep,
    OneCycle,
    Polynomial,
    StepDecay,
    Table,
    Warmup,
    sampled,
)
from edl.nn.optimizers import from_dict, learning_rate, to_dict

STEPS = 40
DEEP = {"schedule": "Warmup", "steps": 1, "after": {"schedule": "Warmup"}}


def odd(version):
    return 0.3 / math.sqrt(1 + version) + 0.01 * math.sin(version)


CASES = {  # ours, torch's, and torch's first rate
    "steps": (StepDecay(0.3, 7, 0.5), lambda o: theirs.StepLR(o, 7, 0.5)),
    "cosine": (
        Cosine(0.3, STEPS, min_lr=0.01),
        lambda o: theirs.CosineAnnealingLR(o, STEPS, eta_min=0.01),
    ),
    "multistep": (
        MultiStep(0.3, [20, 5, 20, 33], gamma=0.5),
        lambda o: theirs.MultiStepLR(o, [20, 5, 20, 33], gamma=0.5),
    ),
    "exponential": (Exponential(0.3, 0.9), lambda o: theirs.ExponentialLR(o, 0.9)),
    "polynomial": (Polynomial(0.3, 30, 1.7), lambda o: theirs.PolynomialLR(o, 30, 1.7)),
    "polynomial by default": (Polynomial(0.3), theirs.PolynomialLR),
    "one cycle": (OneCycle(0.3, STEPS), lambda o: theirs.OneCycleLR(o, 0.3, STEPS)),
    "one cycle, lines": (
        OneCycle(0.3, STEPS, 0.25, "linear", 10, 100),
        lambda o: theirs.OneCycleLR(
            o, 0.3, STEPS, None, None, 0.25, "linear", div_factor=10, final_div_factor=100
        ),
    ),
    "one cycle of three": (
        OneCycle(0.3, STEPS, three_phase=True),
        lambda o: theirs.OneCycleLR(o, 0.3, STEPS, three_phase=True),
    ),
    "warm-up": (Warmup(0.3, 8), lambda o: theirs.LinearLR(o, total_iters=8)),
    "warm-up before steps": (
        Warmup(StepDecay(0.3, 7, 0.5), 10, start_factor=0.1),
        lambda o: theirs.SequentialLR(
            o, [theirs.LinearLR(o, 0.1, total_iters=10), theirs.StepLR(o, 7, 0.5)], [10]
        ),
    ),
    "function": (sampled(odd, STEPS), lambda o: theirs.LambdaLR(o, lambda v: odd(v) / 0.3)),
}


@pytest.mark.parametrize("case", CASES)
def test_each_schedule_is_torchs(case):
    ours, make = CASES[case]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3, momentum=0.9)
    scheduler = make(optimizer)
    told = from_dict(json.loads(json.dumps(to_dict(SGD(ours)))))  # as the servers are

    for version in range(STEPS):
        expected = optimizer.param_groups[0]["lr"]
        assert learning_rate(told, version) == pytest.approx(expected, rel=1e-7, abs=1e-12)
        optimizer.step()
        if version + 1 < STEPS:
            scheduler.step()


def test_a_long_function_is_sampled_in_a_bounded_table_with_lines_between():
    steps = 1_000_001
    asked = []

    def function(version):
        asked.append(version)
        return 1e-3 * (1 + version) ** -0.25

    table = sampled(function, steps)

    assert len(asked) == len(table.values) <= 4097
    assert (0, steps) == (asked[0], max(asked))
    for version in [0, 245, 10_000, 123_456, 999_999]:
        assert table.at(version) == pytest.approx(1e-3 * (1 + version) ** -0.25, rel=1e-6, abs=3e-5)
    assert table.at(asked[7]) == pytest.approx(1e-3 * (1 + asked[7]) ** -0.25, rel=1e-8)
    assert table.at(10 * steps) == pytest.approx(1e-3 * (1 + steps) ** -0.25, rel=1e-8)


def test_past_its_end_a_schedule_keeps_its_last_rate():
    assert 0.3 / 25 / 1e4 == pytest.approx(OneCycle(0.3, 10).at(10**9))
    assert Polynomial(0.3, 10).at(10**9) == 0
    assert 0.5 == Table((1.0, 0.5)).at(10**12)
    assert Exponential(0.3, 1.1).at(10**9) == math.inf


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Constant("0.1"),
        lambda: StepDecay(math.nan, 3),
        lambda: StepDecay(0.1, 0),
        lambda: StepDecay(0.1, 3, gamma=None),
        lambda: Cosine(math.inf, 10),
        lambda: Cosine(0.1, 10, warmup_steps=-3),
        lambda: Cosine(0.1, "10"),
        lambda: MultiStep(0.1, ["a"]),
        lambda: MultiStep("0.1", [1]),
        lambda: Exponential(math.nan, 0.9),
        lambda: Polynomial(0.1, 0),
        lambda: OneCycle(0.1, 10, anneal_strategy="poly"),
        lambda: OneCycle(0.1, 10, pct_start=2.0),
        lambda: Warmup(Warmup(0.1, 3), 3),
        lambda: Warmup(object(), 3),
        lambda: Warmup(Constant(0.1), 0),
        lambda: Table(()),
        lambda: Table((0.1, math.inf)),
        lambda: sampled(lambda version: 1 / version, 10),
        lambda: sampled(lambda version: None, 10),
        lambda: sampled(abs, 0),
        lambda: SGD(lr=lambda version: 0.1),
        lambda: from_dict({"name": "SGD", "lr": DEEP}),
    ],
)
def test_what_is_no_schedule_is_refused(wrong):
    with pytest.raises(DefinitionError):
        wrong()


def test_a_bare_function_is_told_how_it_is_given():
    with pytest.raises(DefinitionError, match=r"lr=edl\.nn\.sampled\(function, steps=N\)"):
        SGD(lr=lambda version: 0.1)
