"""Whole jobs whose data or definition is broken (rule 7): named, bounded, never dropped in silence.

A test's docstring says what was broken once to see it fail.
"""

import pytest
from tools.jobs import ZOO, Job, write_records
from tools.stage import counts, each

MINIBATCH = 16
RECORDS = 256


def poisoned(folder, fault="", bad=None, **settings):
    """Make a job of tests/zoo/staged.py that fails at `fault`: at the record `bad`, or at all."""
    envs = {"FAULT": fault, "BAD": str(-1 if bad is None else bad)}
    return Job(
        folder / "job",
        **{
            "model_def": "staged",
            "training_data": str(write_records(folder / "records.npz", RECORDS)),
            "minibatch_size": MINIBATCH,
            "num_minibatches_per_task": 4,
            "num_workers": 2,
            "shuffle": False,
            "use_async": True,
            "envs": envs,
            **settings,
        },
    )


def failures(job):
    return [e["text"] for e in job.result()["events"] if " failed at positions " in e["text"]]


def line_of(text):
    """Return file:line of a text in the definition."""
    path = ZOO / "staged.py"
    (number,) = [n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line]
    return f"{path}:{number}"


def test_a_broken_record_of_a_csv_is_named_and_all_others_are_applied(tmp_path):
    """Broken once: batches.spans blames no record (SpanError without it)."""
    data = tmp_path / "records.csv"
    lines = ["record", *map(str, range(RECORDS))]
    lines[1 + 70] = "seventy"
    data.write_text("\n".join(lines) + "\n")
    declared = {"dtypes": "record:int64"}
    job = poisoned(tmp_path, training_data=str(data), data_reader_params=declared)
    with job:
        assert 3 == job.wait(), job.logs()

    (quarantined,) = job.result()["quarantined"]
    assert (str(data), [70]) == (quarantined["source"], quarantined["records"])
    assert "record 70: column 'record': 'seventy' is no int64" in quarantined["error"]
    assert 3 == len(failures(job))
    assert "1 record was quarantined" in job.result()["message"]
    assert each(set(range(RECORDS)) - {70}) == counts(job)


RAISED = "ValueError: {} does not like this ({})"


@pytest.mark.parametrize(
    ("fault", "shuffle"), [("feed", False), ("loss", False), ("loss", True), ("nan", True)]
)
def test_a_minibatch_that_fails_is_named_and_all_others_are_applied(fault, shuffle, tmp_path):
    """Broken once: Worker._fail reports the span after the one that failed."""
    job = poisoned(tmp_path, fault, bad=70, skip_records=MINIBATCH, shuffle=shuffle)
    with job:
        assert 0 == job.wait(), job.logs()  # within the budget

    (quarantined,) = job.result()["quarantined"]
    assert job.settings.training_data == quarantined["source"]
    assert 70 in quarantined["records"]
    assert MINIBATCH == len(quarantined["records"])
    raised = RAISED.format(fault, line_of("raise ValueError"))
    assert ("NonFinite: the loss is nan" if fault == "nan" else raised) == quarantined["error"]
    assert 3 == len(failures(job))
    assert each(set(range(RECORDS)) - set(quarantined["records"])) == counts(job)


def test_as_many_tries_as_the_user_wants_and_one_record_over_the_budget_is_exit_code_3(tmp_path):
    """Broken once: TaskQueue takes no notice of its tolerance."""
    job = poisoned(tmp_path, "loss", bad=5, task_fault_tolerance=5, skip_records=MINIBATCH - 1)
    with job:
        assert 3 == job.wait(), job.logs()

    assert 5 == len(failures(job))
    (quarantined,) = job.result()["quarantined"]
    assert list(range(MINIBATCH)) == quarantined["records"]
    assert each(range(MINIBATCH, RECORDS)) == counts(job)


@pytest.mark.parametrize("fault", ["feed", "loss"])
def test_a_definition_that_always_raises_fails_the_job_at_once_with_the_users_error(
    fault, tmp_path
):
    """Broken once: TaskQueue.failed is never hopeless."""
    job = poisoned(tmp_path, fault)
    with job:
        assert 1 == job.wait(), job.logs()

    status = job.result()
    assert (
        f"ValueError: {fault} does not like this ({line_of('raise ValueError')})"
        in (status["message"])
    )
    assert 5 <= len(failures(job)) <= 5 + job.settings.num_workers
    assert 0 == status["records_done"]
    assert len(status["quarantined"]) <= 1  # one span has used up its tries if a worker came late


def test_a_first_minibatch_that_fails_does_not_condemn_the_definition(tmp_path):
    """Broken once: TaskQueue.failed is hopeless after as many failures as there are tries."""
    one_task = {"num_minibatches_per_task": RECORDS // MINIBATCH}  # so that no other proves it
    job = poisoned(tmp_path, "feed", bad=3, skip_records=MINIBATCH, **one_task)
    with job:
        assert 0 == job.wait(), job.logs()

    assert [list(range(MINIBATCH))] == [q["records"] for q in job.result()["quarantined"]]
    assert each(range(MINIBATCH, RECORDS)) == counts(job)


@pytest.mark.parametrize("callback", ["on_task_end", "on_train_end"])
def test_a_callback_that_fails_fails_the_job_and_quarantines_nothing(callback, tmp_path):
    """Broken once: Worker._end blames all of the task for it."""
    job = poisoned(tmp_path, callback)
    with job:
        assert 1 == job.wait(), job.logs()

    status = job.result()
    assert RAISED.format(callback, line_of("raise ValueError")) in status["message"]
    assert [] == status["quarantined"]
    assert 3 <= len(failures(job)) <= 3 + job.settings.num_workers
    if callback == "on_train_end":  # what was learnt is not lost with it
        assert each(RECORDS) == counts(job)


def test_a_metric_that_fails_fails_the_job_and_quarantines_nothing(tmp_path):
    """Broken once: evaluation counts as proven by training."""
    validation = str(write_records(tmp_path / "validation.npz", RECORDS))
    job = poisoned(tmp_path, "metric", validation_data=validation)
    with job:
        assert 1 == job.wait(), job.logs()

    status = job.result()
    assert RAISED.format("metric", line_of("raise ValueError")) in status["message"]
    assert [] == status["quarantined"]
    assert RECORDS == status["records_done"]


def test_a_metric_that_fails_at_one_record_is_quarantined_and_the_rest_is_evaluated(tmp_path):
    """Broken once: TaskStream.read skips in training only."""
    validation = str(write_records(tmp_path / "validation.npz", RECORDS))
    job = poisoned(tmp_path, "metric", bad=70, validation_data=validation)
    with job:
        assert 3 == job.wait(), job.logs()

    status = job.result()
    (quarantined,) = status["quarantined"]
    assert (validation, list(range(64, 80))) == (quarantined["source"], quarantined["records"])
    assert {"records": 1.0} == status["metrics"]
    assert each(RECORDS) == counts(job)
