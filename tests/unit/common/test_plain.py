"""Words of others: nothing in them does anything to a terminal, and every stream prints them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edl.cli.screen import PlainScreen
from edl.common.plain import encodable, inert, inert_lines, inert_texts, print_all

STATUS = {
    "job_name": "café",
    "state": "done",
    "exit_code": 0,
    "command": "train",
    "events": [{"t": 1.0, "text": "ValueError: ± – 大"}],
}


def ascii_stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)


def written(stream: io.TextIOWrapper) -> str:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode()


def test_lines_are_kept_where_they_are_wanted_and_nothing_else() -> None:
    assert r"a\nb\x1b[2J" == inert("a\nb\x1b[2J")
    assert "a\nb\\x1b[2J\\u202e" == inert_lines("a\nb\x1b[2J\u202e")


def test_all_texts_of_a_status_are_inert_also_names() -> None:
    values = {"a\u202e": ["b\x1b", 3, None, {"c": "\u2066d\n"}], "e": 1.5}

    assert {r"a\u202e": [r"b\x1b", 3, None, {"c": "\\u2066d\n"}], "e": 1.5} == inert_texts(values)


def test_what_an_encoding_lacks_is_told_by_its_number() -> None:
    assert r"\u2500 caf\xe9" == encodable("─ café", ascii_stream())
    assert "─ café" == encodable("─ café", io.StringIO())


@pytest.mark.parametrize(
    ("encoding", "errors", "kept"),
    [
        ("ascii", "strict", "backslashreplace"),
        ("latin-1", "surrogateescape", "backslashreplace"),
        ("utf-8", "strict", "backslashreplace"),  # for names that are no text
        ("utf-8", "surrogateescape", "surrogateescape"),  # for names as they are
        ("ascii", "replace", "replace"),  # as the user wants it
    ],
)
def test_a_stream_prints_everything_and_keeps_what_it_does_already(
    encoding: str, errors: str, kept: str
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=errors)
    print_all(stream)
    print_all(io.StringIO())  # one that cannot lack anything

    assert kept == stream.errors


def test_a_job_is_followed_to_its_end_on_a_stream_that_has_ascii_alone() -> None:
    """As `edl.train` prints, in a program whose stdout is not ours to change."""
    stream = ascii_stream()
    screen = PlainScreen(stream, {})
    screen.show({**STATUS, "state": "running", "exit_code": None})
    screen.end(STATUS, 0)

    assert r"ValueError: \xb1 \u2013 \u5927" in written(stream)
    assert "state        done" in written(stream)


def test_a_posix_locale_gets_every_answer(tmp_path: Path) -> None:
    job = tmp_path / "jobs" / "cafe"
    job.mkdir(parents=True)
    (job / "result.json").write_text(json.dumps(STATUS))
    found = subprocess.run(
        [sys.executable, "-m", "edl", "status", "cafe"],
        env={**os.environ, "EDL_HOME": str(tmp_path), "PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert (0, b"") == (found.returncode, found.stderr)
    assert all(each in found.stdout for each in (rb"caf\xe9", rb"\u5927"))
