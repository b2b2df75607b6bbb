"""Words of others on a terminal: exceptions, names, events and logs of users do nothing there."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from edl.api import page
from edl.cli import main as cli
from edl.cli.output import log_line, print_report
from edl.cli.screen import PlainScreen
from edl.common.errors import JobError
from edl.jobs import view
from edl.jobs.job import Report

WORDS = "\x1b[2J\u202egnp.exe [red]x[/] [/nothing]"
SHOWN = r"\x1b[2J\u202egnp.exe [red]x[/] [/nothing]"
STATUS: dict[str, Any] = {
    "job_name": "demo",
    "state": "failed",
    "exit_code": 1,
    "command": "train",
    "message": f"ValueError: {WORDS}",
    "metrics": {f"m{WORDS}": 0.5},
    "quarantined": [{"source": f"a{WORDS}", "records": [1], "error": WORDS}],
    "events": [{"t": 1.0, "text": f"event {WORDS}"}],
    "best": {"metric": f"b{WORDS}", "value": 0.5, "epoch": 0, "version": 1, "checkpoint": "/c"},
}


def is_inert(text: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in text)


@pytest.mark.parametrize(
    "drawn",
    [
        lambda _wide: view.panel(STATUS),
        lambda _wide: view.jobs_table([STATUS], wide=True),
        lambda _wide: view.events(STATUS["events"]),
        lambda _wide: ["", WORDS],  # whatever a command draws
    ],
    ids=["status", "list", "events", "text"],
)
def test_what_is_drawn_has_them_by_their_numbers_and_no_markup(
    drawn: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(Report([STATUS], drawn), "table")

    said = capsys.readouterr().out
    assert is_inert(said)
    assert SHOWN in said


def test_the_lines_of_edl_train_and_its_summary_have_them_by_their_numbers() -> None:
    stream = io.StringIO()
    screen = PlainScreen(stream, {})
    screen.note(f"starting: {WORDS}")
    screen.show({**STATUS, "state": "running", "exit_code": None})
    screen.end(STATUS, 1)

    assert is_inert(stream.getvalue())
    assert [True] * 4 == [
        f"{before}{SHOWN}" in stream.getvalue()
        for before in ("starting: ", "] event ", "state        failed: ValueError: ", "m")
    ]


def test_an_error_has_them_by_their_numbers_and_keeps_its_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails() -> None:
        raise JobError(f"{WORDS}\nThe end of its log")

    assert 1 == cli.report(fails)
    assert f"edl: error: {SHOWN}\nThe end of its log\n" == capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_log_is_inert_on_a_terminal_and_no_other_text_in_a_pipe(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    log_line("a\u202eb")

    shown = "a\\u202eb" if is_terminal else "a\u202eb"
    assert f"{shown}\n" == capsys.readouterr().out


def test_a_notebook_has_them_by_their_numbers() -> None:
    table = page.table(STATUS)

    assert is_inert(table)
    assert r"\u202egnp.exe" in table


def test_a_status_for_programs_is_what_the_job_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path))
    (tmp_path / "jobs" / "demo").mkdir(parents=True)
    (tmp_path / "jobs" / "demo" / "result.json").write_text(json.dumps(STATUS))

    assert 0 == cli.run(("status", "demo", "-o", "json"))
    assert STATUS.items() <= json.loads(capsys.readouterr().out).items()
