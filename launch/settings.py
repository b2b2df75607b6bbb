"""The settings of a launched job, in its folder's settings.json."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Self

from ..common.launched import LaunchedSettings
from ..common.stored import Stored
from .rounds import Policy


@dataclass(frozen=True)
class LaunchSettings(Stored):
    """The settings of a launched job, which all its nodes get.

    `checkpoint_dir`: absolute, and the same place on every machine. `script`: for the eye only; a
    node that joins runs the one that it was given.
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
    python: list[str] = field(default_factory=list)  # of the agents that the coordinator starts:
    nproc_per_node: int = 1  # what each worker's Python gets, and how many of them
    local_nodes: int = 0

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the settings that `to_json` wrote.

        Unknown names raise TypeError.
        """
        values = json.loads(text)
        if "lease_s" in values:  # its name before 0.1.0
            values["silent_s"] = values.pop("lease_s")
        return cls(**values)

    @classmethod
    def in_pods(cls, settings: LaunchedSettings, checkpoint_dir: str) -> Self:
        """Return the settings of a job whose nodes are pods: these wait for room without end."""
        least, most = settings.bounds
        return cls(
            job_name=settings.job_name,
            min_nodes=least,
            max_nodes=most,
            checkpoint_dir=checkpoint_dir,
            script=" ".join([settings.script, *settings.arguments]),
            keep_checkpoint_max=settings.keep_checkpoint_max or cls.keep_checkpoint_max,
            max_restarts=settings.max_restarts,
            last_call_s=settings.seconds("last_call"),
            silent_s=settings.lease_seconds,
            wait_for_nodes_s=math.inf,
            freeze_s=settings.seconds("freeze"),
            nearly_done_s=settings.seconds("nearly_done"),
            stop_timeout_s=round(settings.seconds("stop_timeout")),
            port=settings.port,
            python=settings.python,
            nproc_per_node=settings.nproc_per_node,
        )

    @property
    def policy(self) -> Policy:
        names = [each.name for each in dataclasses.fields(Policy)]
        ours = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return Policy(**ours, rejoin_s=2 * self.stop_timeout_s + 60.0)
