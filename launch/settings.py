"""The settings of a launched job, in its folder's settings.json."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Self

from ..common.errors import UsageError
from ..common.stored import Stored
from .rounds import Policy


@dataclass(frozen=True)
class LaunchSettings(Stored):
    """The settings of a launched job, which all its nodes get.

    `checkpoint_dir`: absolute, and the same place on every machine. `script`: for the eye only;
    each node runs the one that it was given.
    """

    job_name: str
    min_nodes: int
    max_nodes: int
    checkpoint_dir: str
    script: str = ""
    keep_checkpoint_max: int = 3
    max_restarts: int = 3
    last_call_s: float = 3.0
    silent_s: float = 15.0
    wait_for_nodes_s: float = 600.0
    freeze_s: float = 0.0
    nearly_done_s: float = 30.0
    stop_timeout_s: int = 30  # between SIGTERM and SIGKILL of a script
    coordinator_timeout_s: float = 300.0  # a node goes on so long without the coordinator
    port: int = 0
    command: str = "launch"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the settings that `to_json` wrote.

        Unknown names raise TypeError.
        """
        values = json.loads(text)
        if "lease_s" in values:  # its name before 0.1.0
            values["silent_s"] = values.pop("lease_s")
        return cls(**values)

    @property
    def policy(self) -> Policy:
        names = [each.name for each in dataclasses.fields(Policy)]
        ours = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return Policy(**ours, rejoin_s=2 * self.stop_timeout_s + 60.0)


def parse_nodes(text: str) -> tuple[int, int]:
    """Return the least and the most nodes of MIN:MAX, or of one number for both.

    Raises UsageError.
    """
    low, colon, high = text.partition(":")
    try:
        least, most = int(low), int(high if colon else low)
    except ValueError as error:
        raise UsageError(f"--nodes {text} is no range: say MIN:MAX, 1:4 for example.") from error
    if least < 1:
        raise UsageError(f"--nodes {text}: a job needs at least 1 node.")
    if most < least:
        raise UsageError(f"--nodes {text}: MIN is above MAX; did you mean {most}:{least}?")
    return least, most
