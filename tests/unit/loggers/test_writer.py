"""A logger that raises or hangs is told once, and the others go on."""

import json
import signal
import sys
import threading

import pytest

from edl.common.identity import Identity
from edl.common.settings import JobSettings
from edl.jobs import loggers, notes
from edl.jobs.history import FILE
from edl.loggers import kept, process
from edl.loggers.__main__ import main, supervise
from edl.loggers.core import Cursor
from edl.loggers.kept import Kept
from edl.loggers.logger import DONE, FAILED, STOPPED, Run
from edl.loggers.process import follow, outcome_of, params_of, tags_of
from edl.loggers.writer import Writer

POINT = {"t": 1.0, "version": 3, "scalars": {"loss": 0.5}}


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "demo"
    (folder / "loggers").mkdir(parents=True)
    (folder / FILE).write_text(json.dumps(POINT) + "\n")
    return folder


class Logger:
    """A logger that fails as often as it is told to, or hangs in its first write."""

    def __init__(self, failures=0, hangs=None):
        self.failures, self.hangs, self.steps, self.ends = failures, hangs, [], []

    def open(self, run, state):
        return {"loss/train": max(self.steps, default=-1)}

    def write(self, told):
        if self.hangs is not None:
            self.hangs.wait(60)
        if self.failures:
            self.failures -= 1
            raise OSError("no  route\nto host")
        self.steps += [one.step for one in told]
        return True

    def state(self):
        return {}

    def finish(self, outcome):
        self.ends.append(outcome)


def writer_of(job, logger, said, name="mine"):
    run = Run("demo-1", "demo", {}, {}, job / "loggers", 0.0)
    return Writer(name, lambda: logger, run, job, "job", said.append)


def test_a_logger_that_raises_is_told_once_and_tried_again_ever_later(job):
    said, logger = [], Logger(failures=4)
    writer = writer_of(job, logger, said)

    failed = []
    for now in range(60):
        left = logger.failures
        if not writer.turn(float(now)) and logger.failures < left:
            failed.append(now)

    assert [0, 2, 6, 14] == failed
    assert [3] == logger.steps
    (text,) = said
    assert text.startswith("logger mine: OSError: no route to host; it is tried again; training")


def test_what_was_told_of_a_logger_is_not_told_again_by_the_next_process(job):
    said = []
    for _ in range(2):
        assert not writer_of(job, Logger(failures=1), said).turn(0.0)

    assert 1 == len(said)


def test_a_logger_that_raises_or_hangs_stops_no_other(job):
    said, ended, release = [], threading.Event(), threading.Event()
    good, bad, hung = Logger(), Logger(failures=10**6), Logger(hangs=release)
    named = {"good": good, "bad": bad, "hung": hung}
    writers = [writer_of(job, logger, said, name) for name, logger in named.items()]
    ended.set()

    assert not follow(writers, ended, lambda: DONE, hang_s=0.2, drain_s=0.5, last_pause_s=0.01)
    release.set()

    assert ([3], ["done"]) == (good.steps, good.ends)
    assert [] == bad.ends
    assert {"logger bad: OSError: no", "logger hung: it has not"} == {text[:23] for text in said}
    assert 2 == len(said)
    for thread in threading.enumerate():
        if thread.name in named:
            thread.join(10)


def test_a_cursor_that_is_torn_begins_anew_and_one_that_is_kept_is_read(tmp_path):
    value = Kept("job", Cursor(7, 3, {"a": 3}), {"length": 4})
    kept.save(tmp_path, "jsonl", value)
    (tmp_path / "mlflow.json").write_text('{"job": "jo')

    assert value == kept.load(tmp_path, "jsonl")
    assert Kept() == kept.load(tmp_path, "mlflow")
    assert Kept() == kept.load(tmp_path, "wandb")


def test_a_job_goes_on_with_the_cursors_of_the_last_one_of_its_run(tmp_path, monkeypatch):
    monkeypatch.setenv("EDL_HOME", str(tmp_path))
    for place, run, length in (("jobs/a", "run-1", 1), ("old/b.1", "run-1", 2), ("jobs/c", "x", 3)):
        folder = tmp_path / place / "loggers"
        folder.mkdir(parents=True)
        kept.save(folder, "jsonl", Kept("before", Cursor(), {"length": length}))
        (folder / "run-1.jsonl").write_text("line\n" * length)
        (folder / "jsonl.told").touch()
        (folder / "run").write_text(run)
    new = tmp_path / "jobs" / "d"
    (new / "loggers").mkdir(parents=True)

    folder = kept.begin(new, "run-1")

    assert {"length": 2} == kept.load(folder, "jsonl").state
    assert "line\nline\n" == (folder / "run-1.jsonl").read_text()
    assert not (folder / "jsonl.told").exists()
    kept.save(folder, "jsonl", Kept("own"))
    assert "own" == kept.load(kept.begin(new, "run-1"), "jsonl").job


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        ('{"state": "done", "exit_code": 3}', DONE),
        ('{"state": "failed", "exit_code": 1}', FAILED),
        ('{"state": "failed", "exit_code": 130}', STOPPED),
        (None, STOPPED),
    ],
)
def test_a_run_ends_as_its_job(tmp_path, result, outcome):
    if result is not None:
        (tmp_path / "result.json").write_text(result)

    assert outcome == outcome_of(tmp_path)


def test_parameters_are_the_settings_without_values_of_variables(tmp_path):
    (tmp_path / "mine.py").write_text("")
    settings = JobSettings(envs={"KEY": "secret"}, model_def=str(tmp_path / "mine.py"))

    params = params_of(settings)

    assert (["KEY"], 64) == (params["envs"], params["minibatch_size"])
    assert "image_name" not in params
    assert "e3b0c442" == tags_of(settings)["edl.definition_sha256"][:8]


def test_a_job_that_is_over_is_written_to_its_end(job, monkeypatch):
    monkeypatch.setenv("EDL_HOME", str(job.parent))
    settings = JobSettings(job_name="demo", logger="jsonl", run="demo-1")
    (job / "settings.json").write_text(settings.to_json())
    (job / "result.json").write_text('{"state": "done"}')
    (job / "lock").touch()
    Identity("token").save(job)
    monkeypatch.setattr(process.logs, "configure", lambda *_: None)

    assert 0 == main(["--job-dir", str(job), "--write"])

    lines = (job / "loggers" / "demo-1.jsonl").read_text().splitlines()
    assert [3, "done"] == [json.loads(lines[1])["step"], json.loads(lines[2])["end"]]


def test_a_process_that_is_killed_is_started_again_and_its_end_is_noted(job):
    script = (
        "import os, pathlib, sys; seen = pathlib.Path(sys.argv[2], 'seen'); "
        f"seen.exists() or (seen.touch(), os.kill(os.getpid(), {signal.SIGKILL}))"
    )

    assert 0 == supervise(job, [sys.executable, "-S", "-c", script])

    assert [] == loggers.wait_for_end(job)
    assert (job / "seen").exists()


def test_a_process_that_dies_again_and_again_is_told(job):
    script = f"import os; os.kill(os.getpid(), {signal.SIGKILL})"

    assert -signal.SIGKILL == supervise(job, [sys.executable, "-S", "-c", script])

    assert [
        "the loggers' process has ended: logs/loggers.log; training goes on"
    ] == loggers.wait_for_end(job)


def test_who_follows_a_job_waits_for_its_loggers_so_long(job):
    notes.leave(job, "a")
    notes.leave(job, "b")

    *told, late = loggers.wait_for_end(job, 0.0)

    assert ["a", "b"] == told
    assert "still write" in late
    assert [] == notes.take(job)
    assert [] == loggers.wait_for_end(job / "nowhere")
