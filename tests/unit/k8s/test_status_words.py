"""What a definition's exception says reaches a terminal by kubectl: nothing in it does anything."""

from __future__ import annotations

import pytest

from edl.k8s import names, objects
from edl.k8s.job_status import Situation, status

from .edljobs import edljob, told

NOW = "2026-01-01T00:00:00Z"
WORDS = "ValueError: \x1b[2J\x1b]0;owned\x07 \u202eabc\u2066\x9b31m\nthe second line"
SHOWN = r"ValueError: \x1b[2J\x1b]0;owned\x07 \u202eabc\u2066\x9b31m" + "\nthe second line"


@pytest.mark.parametrize(("state", "code"), [("failed", 1), ("stopped", 130), ("running", None)])
def test_a_message_and_the_conditions_tell_such_characters_by_their_numbers(
    state: str, code: int | None
) -> None:
    said = told(state, exit_code=code, message=WORDS, checkpoint="/c/\x1b[1m")

    found = status(Situation(job=edljob(), pods=[], told=said, masters=1, begun=True), NOW)

    assert (SHOWN, r"/c/\x1b[1m") == (found["message"], found["checkpoint"])
    messages = [each.get("message", "") for each in found["conditions"]]
    assert SHOWN in messages
    assert not any("\x1b" in each or "\u202e" in each for each in messages)


def test_a_stopped_job_is_told_by_the_reason_of_its_condition() -> None:
    said = told("stopped", exit_code=130, message="stopped (edl stop) at record 5")
    found = status(Situation(job=edljob(), pods=[], told=said, masters=1, begun=True), NOW)

    (failed,) = [each for each in found["conditions"] if each["type"] == "Failed"]
    assert ("Failed", "Stopped") == (found["phase"], failed["reason"])


def test_an_event_tells_such_characters_by_their_numbers() -> None:
    event = objects.event((names.KIND, "demo", "default", "u"), "Failed", WORDS, False, NOW)

    assert SHOWN == event["message"]
