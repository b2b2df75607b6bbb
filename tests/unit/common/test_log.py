"""Lines of the log."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from edl.common import log

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)


def test_text_line_has_time_level_and_process() -> None:
    stream = io.StringIO()
    log.configure("info", "text", "worker", 2, stream)

    logging.getLogger("edl.worker").info("task=%d -> done", 17)

    pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO worker-2 task=17 -> done\n"
    assert re.fullmatch(pattern, stream.getvalue())


def test_json_line_has_the_same_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_JOB_NAME", "census")
    stream = io.StringIO()
    log.configure("info", "json", "server", 0, stream)

    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("edl.ps").exception("push refused")

    line = json.loads(stream.getvalue())
    assert line.pop("ts").endswith("Z")
    assert line.pop("traceback").endswith("ValueError: broken")
    assert line == {
        "level": "error",
        "job": "census",
        "role": "server",
        "index": 0,
        "logger": "edl.ps",
        "msg": "push refused",
    }


def test_lines_below_the_level_are_left_out() -> None:
    stream = io.StringIO()
    log.configure("warning", "text", "master", stream=stream)

    logging.getLogger("edl").info("quiet")

    assert "" == stream.getvalue()


def test_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    log.configure("info", "text", "worker", 0, first)
    log.configure("info", "text", "worker", 0, second)

    logging.getLogger("edl").info("once")

    assert "" == first.getvalue()
    assert 1 == second.getvalue().count("once")


def test_time_is_utc_with_milliseconds() -> None:
    assert "2026-11-21T05:23:22.123Z" == log.timestamp(1795238602.1236)
