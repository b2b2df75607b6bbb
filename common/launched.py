"""The settings of a job in a cluster whose nodes run a script of the user's: `edl submit SCRIPT`.

They are those of any job in a cluster, less what is about definitions and servers, and those of
`edl launch` by the names of its flags; times are text such as 10m, as there.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .errors import UsageError
from .knobs import LONGEST_S, Knob, about, knob, knobs_of
from .settings import JobSettings
from .values import bounds, seconds

COMMAND = "launch"
SAVES_ITSELF = "a script saves its checkpoints by itself: nobody else knows its state"
# What of a job's settings is of a script's job too, besides those of the cluster.
_SHARED = {
    "job_name",
    "envs",
    "num_workers",
    "checkpoint_dir",
    "keep_checkpoint_max",
    "relaunch_on_worker_failure",
    "log_level",
    "log_format",
}
_LEAST_LEASE_S = 4.0  # longer than a held call and its repeat
# The most of a silence and of a grace: a pod that is told to go would stay for so long.
_MOST_S = {"lease": 3600.0, "stop_timeout": 3600.0}


@dataclass(frozen=True)
class LaunchedSettings(JobSettings):
    """The settings of one script's job in a cluster. A worker's pod is a node."""

    script: str = knob(
        "",
        "The script: its path in the pods (from the image's working folder), or a module.",
        "Script",
    )
    arguments: list[str] = field(
        default_factory=list, metadata=about("What the script gets.", "Script")
    )
    module: bool = knob(False, "SCRIPT is a module, as in `python -m`.", "Script")
    nodes: str = knob("", "How many nodes: MIN:MAX, or one number for both.", "Script")
    nproc_per_node: int = knob(1, "Workers of each node.", "Script", minimum=1, maximum=1024)
    max_restarts: int = knob(3, "Failures of the script that are tried again.", "Script")
    last_call: str = knob("3s", "For more than MIN nodes at first.", "Script")
    freeze: str = knob("0s", "After a round began: no node is let in.", "Script")
    nearly_done: str = knob("30s", "Nor when the script needs no longer.", "Script")
    lease: str = knob("15s", "A node silent for longer is lost.", "Script")
    stop_timeout: str = knob("30s", "From SIGTERM to SIGKILL of a script.", "Script")

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the least and the most nodes. Raises UsageError."""
        return parse_nodes(self.nodes or str(self.num_workers))

    @property
    def python(self) -> list[str]:
        """Return the arguments of each worker's Python."""
        return [*(("-m",) if self.module else ()), self.script, *self.arguments]

    def seconds(self, name: str, least_s: float = 0.0) -> float:
        """Return the seconds of a setting that is a time. Raises UsageError."""
        return time_of(f"--{name}", getattr(self, name), least_s, math.inf)  # as it has begun

    @property
    def lease_seconds(self) -> float:
        """Return how long a node may be silent. Raises UsageError."""
        return self.seconds("lease", _LEAST_LEASE_S)


@functools.cache
def own_knobs() -> tuple[Knob, ...]:
    """Return what a user may set of the script, and of no other job."""
    return tuple(knob for knob in knobs_of(LaunchedSettings) if knob.group == "Script")


@functools.cache
def knobs() -> tuple[Knob, ...]:
    """Return what a user may set of a script's job in a cluster."""
    all_of_them = knobs_of(LaunchedSettings)
    return tuple(k for k in all_of_them if k.group in ("Cluster", "Script") or k.name in _SHARED)


@functools.cache
def spellings() -> dict[str, str]:
    """Return every accepted name (with underscores) -> the setting."""
    return {spelled: knob.name for knob in knobs() for spelled in (knob.name, *knob.aliases)}


def read(text: str) -> JobSettings:
    """Return the settings of a job in a cluster, a script's or another's, that `to_json` wrote.

    Raises TypeError or ValueError where these are none.
    """
    launched = json.loads(text).get("command") == COMMAND
    return (LaunchedSettings if launched else JobSettings).from_json(text)


def check(settings: LaunchedSettings, say: Callable[[str], str]) -> None:
    """Refuse what cannot run. Raises UsageError. `say`: how a setting is named."""
    if not settings.script:
        raise UsageError(
            "There is no script: name what the nodes run (`edl submit SCRIPT`, "
            "spec.settings.script of an EdlJob): its path in the pods, or a module."
        )
    least, most = settings.bounds
    if not least <= settings.num_workers <= most:
        raise UsageError(
            f"{say('num_workers')} {settings.num_workers} is not within {say('nodes')} "
            f"{least}:{most}: give a number between these."
        )
    for name in ("last_call", "freeze", "nearly_done", "stop_timeout"):
        time_of(say(name), getattr(settings, name), most_s=_MOST_S.get(name, LONGEST_S))
    time_of(say("lease"), settings.lease, _LEAST_LEASE_S, _MOST_S["lease"])


def parse_nodes(text: str) -> tuple[int, int]:
    """Return the least and the most nodes of MIN:MAX, or of one number for both.

    Raises UsageError.
    """
    least, most = bounds(text, "--nodes")
    if least < 1:
        raise UsageError(f"--nodes {text}: a job needs at least 1 node.")
    return least, most


def time_of(said: str, text: str, least_s: float = 0.0, most_s: float = LONGEST_S) -> float:
    """Return the seconds of a text such as 10m. Raises UsageError, which names it as `said`."""
    try:
        found = seconds(text)
    except ValueError as error:
        raise UsageError(f"{said}: {error}.") from error
    if found < least_s:
        raise UsageError(f"{said} {text}: at least {least_s:g}s.")
    if found > most_s:
        raise UsageError(f"{said} {text}: at most {most_s:g}s.")
    return found


def with_nodes(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values, with as many nodes wanted at first as --nodes allows, if it says so."""
    if not values.get("nodes"):
        return values
    least, most = parse_nodes(str(values["nodes"]))
    return {"num_workers": most, "min_workers": least, **values}
