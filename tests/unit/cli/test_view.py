"""The drawing of a status."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from edl.cli.next_command import next_command
from edl.cli.screen import JsonScreen, LiveScreen, PlainScreen
from edl.common.clock import FakeClock
from edl.dashboard.health import health
from edl.jobs import view
from edl.jobs.job import as_of_now, ended_as

pytestmark = pytest.mark.fast


def drawn(renderable: Any, width: int = 100) -> str:
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(renderable)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def test_panel_of_a_running_job(status: dict[str, Any]) -> None:
    expected = """\
╭─  edl train · census · running · 0:42  ────────────────────────────────────────────────╮
│ records  ━━━━━━━━━━━━━━━━━━━━━━━╸                60 % 38,912/64,000 records · ETA 0:12 │
│ now      epoch 2/3 · 1,930 records/s · loss 0.4821 · version 608 · auc 0.7312          │
│ tasks    todo 40 · leased 2 · fencing 1 · done 83 of 126                               │
│ restarts preempted: workers 2, servers 3, master 1 · failed: workers 1, servers 0      │
│                                                                                        │
│ replica   state     task  records/s  version   pid   heard of                          │
│ worker-0  training    84        960        -  1200  0.2 s ago                          │
│ worker-1  starting     -          -        -  1203          -                          │
│ server-0  serving      -          -      608  1188          -                          │
│                                                                                        │
│ ! /data/census.csv records 17, 18: ValueError: could not convert string to float: 'x'  │
│                                                                                        │
│   0:01  worker-0 is here                                                               │
│   0:12  worker-1 is lost: task 17 is leased again from position 128                    │
╰────────────────────────────────────────────────────────────────────────────────────────╯"""
    assert expected == drawn(view.panel(status), 90)


def test_panel_of_a_job_that_has_not_begun() -> None:
    text = drawn(view.panel({"job_name": "census", "state": "starting"}), 60)

    assert "edl job · census · starting · -" in text


def test_panel_of_very_many_workers_stays_small(status: dict[str, Any]) -> None:
    workers = [{"index": index, "state": "training"} for index in range(100)]

    text = drawn(view.panel({**status, "workers": workers}))

    assert "… 89 more" in text
    assert 30 > len(text.splitlines())


def test_line_of_a_running_job(status: dict[str, Any]) -> None:
    assert view.line(status) == (
        "running · 60 % 38,912/64,000 records · epoch 2/3 · 1,930 records/s · loss 0.4821 · "
        "version 608 · auc 0.7312 · tasks 83/126 · workers 2 · servers 1 · ETA 0:12"
    )


def test_line_of_a_job_whose_minibatch_follows_the_goodput(status: dict[str, Any]) -> None:
    following = {**status, "minibatch": 1024, "gain": 6.25}

    assert "version 608 · minibatch 1,024 (gain 6.25) · auc" in view.line(following)


def test_job_without_end_has_no_percentage(status: dict[str, Any]) -> None:
    endless = {**status, "records_total": None, "num_epochs": None}

    assert view.line(endless).startswith("running · 38,912 records · epoch 2 · ")


def test_all_is_said_of_all_only(status: dict[str, Any]) -> None:
    nearly = {**status, "records_done": 63_999}

    assert "99 % 63,999/64,000" in view.line(nearly)


def test_summary_names_quarantined_records_and_the_next_command(status: dict[str, Any]) -> None:
    ended = {**status, "state": "done", "exit_code": 3, "records_done": 64000}
    init = f"--checkpoint_dir_for_init {status['checkpoint']}"
    settings = {"model_def": "iris", "num_ps": 2, "validation_data": "/v.csv", "model_zoo": ""}

    assert view.summary(ended, next_command(ended, settings)) == [
        "state        finished with quarantined data",
        "records      100 % 64,000/64,000 records",
        "time         0:42 · 1,513 records/s in the mean",
        "metrics      auc 0.7312",
        "loss         0.4821",
        "restarts     preempted: workers 2, servers 3, master 1 · failed: workers 1, servers 0",
        f"quarantined  /data/census.csv records 17, 18: {status['quarantined'][0]['error']}",
        f"checkpoint   {status['checkpoint']}",
        f"next         edl evaluate --model_def iris --num_ps 2 --validation_data /v.csv {init}",
    ]


def test_failed_job_points_to_its_logs_and_tells_last_what_goes_on(status: dict[str, Any]) -> None:
    failed = {**status, "state": "failed", "exit_code": 1, "resume": "/my jobs/census"}

    assert "edl logs census" == next_command(failed, {})
    assert "edl train --resume '/my jobs/census'" == view.summary(failed)[-1]


def test_a_job_that_was_stopped_is_no_failure_anywhere(status: dict[str, Any]) -> None:
    """Also of an earlier version, which has said `failed` of it."""
    message = "stopped (edl stop) at record 50; go on with: edl train --resume /c"
    ended = {**status, "exit_code": 130, "message": message}
    stopped = as_of_now({**ended, "state": "failed"})

    assert {**ended, "state": "stopped"} == stopped
    assert f"state        {message}" == view.summary(stopped)[0]
    assert (
        "state        stopped: edl cancel" == view.summary({**stopped, "message": "edl cancel"})[0]
    )
    assert "stopped" in drawn(view.jobs_table([stopped]))
    assert "red" != view.STYLES["stopped"]
    assert "" == next_command(stopped, {})
    told = health(stopped, None, None)
    assert ("ended", True) == (
        told["level"],
        told["text"].startswith("Stopped (edl stop) at record 50"),
    )
    assert ("failed", "stopped") == (ended_as(1), ended_as(130))


def test_plain_screen_tells_each_event_once_and_progress_every_ten_seconds(
    status: dict[str, Any],
) -> None:
    clock, stream = FakeClock(), io.StringIO()
    screen = PlainScreen(stream, {}, clock)
    events = status["events"]
    for seconds in range(12):
        shown = events if seconds < 5 else [*events, {"t": 17.0, "text": "worker-2 is here"}]
        screen.show({**status, "events": shown})
        clock.advance(1.0)

    lines = stream.getvalue().splitlines()

    assert lines == [
        "[0:01] worker-0 is here",
        "[0:12] worker-1 is lost: task 17 is leased again from position 128",
        view.line(status),
        "[0:17] worker-2 is here",
        view.line(status),
    ]


def test_events_that_were_dropped_meanwhile_hide_none_that_are_new(status: dict[str, Any]) -> None:
    stream = io.StringIO()
    screen = JsonScreen(stream, FakeClock())
    screen.show({**status, "events": [{"t": 1.0, "text": "a"}]})
    screen.show({**status, "events": [{"t": 2.0, "text": "b"}, {"t": 3.0, "text": "c"}]})

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]

    assert ["a", "b", "c"] == [line["msg"] for line in lines if line["event"] == "event"]


def test_the_mean_rate_is_that_of_this_run(status: dict[str, Any]) -> None:
    ended = {
        **status,
        "state": "done",
        "records_done": 64000,
        "records_before": 62000,
        "run_s": 4.0,
    }

    assert "time         0:42 · 500 records/s in the mean" in view.summary(ended)


def test_replicas_that_have_left_are_neither_counted_nor_drawn(status: dict[str, Any]) -> None:
    gone = {**status["workers"][0], "index": 2, "state": "left", "heartbeat_age_s": None}
    scaled = {**status, "workers": [*status["workers"], gone]}

    assert "workers 2" in view.line(scaled)
    assert "worker-2" not in drawn(view.panel(scaled))
    ended = {**status, "state": "done", "workers": [gone], "servers": [{**gone, "version": None}]}
    assert "replica" not in drawn(view.panel(ended))


def test_a_record_is_told_once_with_the_places_where_it_was_found(status: dict[str, Any]) -> None:
    places = [("training", 0), ("evaluation", 0), ("training", 1)]
    where = [{"kind": kind, "epoch": epoch} for kind, epoch in places]
    found = {"source": "/a.csv", "records": [7], "error": "ValueError: x", "where": where}

    told = (
        "quarantined  /a.csv record 7: ValueError: x (training, epochs 1, 2; evaluation, epoch 1)"
    )
    assert told in view.summary({**status, "quarantined": [found]})


def test_the_best_is_named_while_the_job_runs_and_at_its_end(status: dict[str, Any]) -> None:
    best = {"metric": "auc", "value": 0.75, "version": 1200, "epoch": 1, "checkpoint": "/c/best/v"}

    assert "best     auc 0.7500 · epoch 2 · version 1,200" in drawn(
        view.panel({**status, "best": best})
    )
    line = "best         auc 0.7500 · epoch 2 · version 1,200 · /c/best/v"
    assert line in view.summary({**status, "best": best})


class Full(io.StringIO):
    """A stream on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_screen_that_cannot_print_says_so_once_and_follows_on(
    status: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for screen in (PlainScreen(Full(), {}), JsonScreen(Full())):
        screen.show(status)
        screen.note("a word")
        screen.end(status, 0)

    once = "edl: nothing more can be printed (No space left on device); the job goes on\n"
    assert 2 * once == capsys.readouterr().err


def test_a_line_is_not_broken_in_a_narrow_terminal(status: dict[str, Any]) -> None:
    file = io.StringIO()
    settings = {"training_data": "/d/" + 60 * "x", "model_def": ":smile:"}
    screen = LiveScreen(Console(file=file, width=40, force_terminal=True), settings)
    ended = {**status, "state": "done", "exit_code": 0}

    with screen:
        screen.end(ended, 0)

    assert f"next         {next_command(ended, settings)}\n" in file.getvalue()
