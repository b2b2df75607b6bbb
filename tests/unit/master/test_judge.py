"""The judges: which evaluation is kept, and where a job ends; pure, against plain Python."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.common.criterion import Criterion, criterion
from edl.common.errors import JobError, UsageError
from edl.common.settings import JobSettings
from edl.master.judge import Judge, Judges, judges_of

pytestmark = pytest.mark.fast

VALUES = st.lists(
    st.one_of(st.floats(-2, 2), st.just(math.nan), st.sampled_from([0.0, 0.5, 1.0])), max_size=30
)


def fed(judge: Judge, values: list[float]) -> Judge:
    for number, value in enumerate(values):
        judge.count(value, 10 * number, number, f"/c/{number}")
    return judge


@given(VALUES, st.booleans())
def test_the_best_is_the_first_of_the_best_values_and_nan_never_is(values, high):
    judge = fed(Judge("m", high), values)

    real = [v for v in values if not math.isnan(v)]
    best = (max(real) if high else min(real)) if real else None
    assert best == judge.value
    if best is not None:
        first = values.index(best)
        assert (10 * first, first, f"/c/{first}") == (judge.version, judge.epoch, judge.checkpoint)


@given(VALUES, st.integers(1, 4), st.booleans())
def test_a_job_ends_at_the_first_evaluation_after_which_none_of_the_last_ones_was_better(
    values, patience, high
):
    judge, ended = Judge("m", high, patience), None
    for number, value in enumerate(values):
        judge.count(value, number, number)
        if judge.exhausted:
            ended = number
            break

    sign = 1 if high else -1
    scores = [-math.inf if math.isnan(v) else sign * v for v in values]
    fresh = [s > max(scores[:n], default=-math.inf) for n, s in enumerate(scores)]
    expected = next(
        (
            n
            for n in range(len(values))
            if n + 1 >= patience and not any(fresh[n + 1 - patience : n + 1])
        ),
        None,
    )
    assert expected == ended


@given(VALUES, st.data())
def test_a_master_that_is_started_again_and_repeats_evaluations_decides_as_one_that_was_not(
    values, data
):
    judges, once = (Judges(Judge("m", True), Judge("m", True, 3)) for _ in range(2))
    for number, value in enumerate(values):
        for judge in (judges.best, judges.stopper, once.best, once.stopper):
            judge.count(value, number, number)
        if data.draw(st.booleans()):
            memory = json.loads(json.dumps(judges.memory()))
            judges = Judges(Judge("m", True), Judge("m", True, 3))
            judges.remember(memory)
            repeated = data.draw(st.integers(0, number))
            for judge in (judges.best, judges.stopper):
                judge.count(values[repeated], repeated, repeated)

    assert once == judges


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auc", Criterion("auc", "", 3)),
        ("auc:5", Criterion("auc", "", 5)),
        ("loss:min", Criterion("loss", "min", 3)),
        ("loss:min:1", Criterion("loss", "min", 1)),
        ("loss:1:min", Criterion("loss", "min", 1)),
        (" f1/macro : max ", Criterion("f1/macro", "max", 3)),
    ],
)
def test_a_criterion_is_a_metric_its_direction_and_a_patience(text, expected):
    assert expected == criterion(text, "--early_stopping", True)


@pytest.mark.parametrize("text", ["", ":min", "auc:min:max", "auc:1:2", "auc:-1", "auc:0", "a:b"])
def test_any_other_criterion_is_refused(text):
    with pytest.raises(UsageError, match="--early_stopping"):
        criterion(text, "--early_stopping", True)


def test_early_stopping_alone_keeps_the_best_too_and_directions_come_from_the_metric():
    known = {"auc": "max", "loss": "min", "own": ""}

    assert Judges(Judge("loss", False), Judge("loss", False, 2)) == judges_of(
        JobSettings(early_stopping="loss:2"), known
    )
    assert Judges(Judge("auc/a", True), Judge("own", False, 3)) == judges_of(
        JobSettings(keep_best="auc/a", early_stopping="own:min"), known
    )
    assert not judges_of(JobSettings(command="evaluate", keep_best="auc"), known)


@pytest.mark.parametrize("value", ["0.5", None, True, [1.0]])
def test_a_metric_that_is_no_number_or_not_there_ends_the_job_with_its_name(value):
    with pytest.raises(JobError, match="'auc'.*is no number"):
        Judge("auc", True).of({"auc": value})
    with pytest.raises(JobError, match=r"'auc'.*not among the metrics \(loss\)"):
        Judge("auc", True).of({"loss": 1.0})
