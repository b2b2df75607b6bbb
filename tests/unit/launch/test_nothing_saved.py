"""What is said of a launched job that has saved nothing."""

from __future__ import annotations

from edl.common import claims
from edl.common.clock import FakeClock
from edl.durable.journal import Journal
from edl.jobs import figures
from edl.launch.coordinator import FORMAT, Coordinator
from edl.launch.settings import LaunchSettings


def test_a_round_that_begins_anew_and_an_empty_folder_are_told_of(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / claims.FILE).write_text("{}")  # whose folder it is says nothing of a state
    journal = Journal(tmp_path / "j.sqlite", FORMAT)
    settings = LaunchSettings("j", 1, 2, str(folder), last_call_s=0.0)
    coordinator = Coordinator(settings, journal, FakeClock())
    told = []
    for number in (1, 2, 3):
        coordinator.join(
            "n", request=str(number), nproc=1, store="h:1", newest=0, failure=None, wait_s=0.0
        )
        told.append(coordinator.final_status())
        if number == 2:
            (folder / "version-000000000001").mkdir()
    journal.close()

    anew = [event["text"] for event in told[-1]["events"] if "nothing is saved" in event["text"]]
    assert [1, 2, 3] == [status["round"] for status in told]
    assert [f"nothing is saved in {folder}: the script begins anew in round 2"] == anew
    shown = [dict(figures.launched(status))["state in"] for status in told]
    more = " (nothing is saved there yet: whoever is killed now begins anew)"
    assert [f"{folder}{more}", f"{folder}{more}", str(folder)] == shown
