"""A failpoint in a process of its own, and the controller that it asks."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from edl.chaos.controller import CONTINUE, OFF, Controller

CODE = """
from edl.common import faults
from edl.common.errors import Unreachable
for number in range(3):
    try:
        faults.point("ps.push", number=number)
        faults.point("not.armed")
        print("on", flush=True)
    except (Unreachable, OSError) as error:
        print(type(error).__name__, getattr(error, "errno", ""), flush=True)
"""


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        yield Path(folder) / "socket"


def run(controller, role="server"):
    own = {"EDL_FAULTS": controller.variable, "EDL_ROLE": role, "EDL_INDEX": "2"}
    return subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_process_at_an_armed_point_does_what_it_is_told(place):
    hits = []
    answers = iter([CONTINUE, {"do": "unreachable"}, {"do": "oserror", "errno": 28}])

    def decide(hit):
        hits.append(hit)
        return next(answers)

    with Controller(place, ["ps.push"], decide) as controller:
        said = run(controller)

    assert ["on", "Unreachable ", "OSError 28"] == said.stdout.splitlines()
    assert [("ps.push", "ps", 2, n) for n in range(3)] == [
        (h.point, h.role, h.index, h.about["number"]) for h in hits
    ]


def test_a_process_may_be_told_to_sleep_while_others_go_on(place):
    at = []

    def decide(hit):
        at.append(hit.about["at"])
        return {"do": "sleep", "for_s": 0.2} if len(at) == 1 else OFF

    with Controller(place, ["ps.push"], decide) as controller:
        said = run(controller)

    assert ["on"] * 3 == said.stdout.splitlines()
    assert at[1] - at[0] >= 0.2


def test_a_process_that_is_told_off_asks_no_more(place):
    hits = []
    with Controller(place, ["ps.push"], lambda hit: hits.append(hit) or OFF) as controller:
        said = run(controller)

    assert ["on"] * 3 == said.stdout.splitlines()
    assert 1 == len(hits)


def test_a_process_may_be_killed_at_the_point(place):
    def decide(hit):
        os.kill(hit.pid, 9)

    with Controller(place, ["ps.push"], decide) as controller:
        said = run(controller)

    assert (-9, "") == (said.returncode, said.stdout)


def test_what_breaks_in_the_controller_is_kept_and_stops_nobody(place):
    def decide(hit):
        raise KeyError("broken")

    with Controller(place, ["ps.push"], decide) as controller:
        said = run(controller)

    assert ["on"] * 3 == said.stdout.splitlines()
    assert ["KeyError"] == [type(error).__name__ for error in controller.errors]
