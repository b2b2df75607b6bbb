"""The command that a user is likely to want after a job, to be pasted as it is."""

from __future__ import annotations

import shlex
from typing import Any

from ..common.settings import knobs
from ..common.values import as_text
from ..jobs.job import STOPPED, Status

# What the job that follows has for itself, or is said below.
_OWN = {
    "job_name",
    "strategy",  # an evaluation has servers, whatever trained
    "output",
    "port",
    "tensorboard",
    "log_level",
    "log_format",
    "snapshot_dir",
    "checkpoint_dir_for_init",
    "schema",  # which the checkpoint has
    "validation_data",
}


def next_command(status: Status, settings: dict[str, Any]) -> str:
    """Return one line; "" where there is nothing to suggest. `settings`: the job's, resolved."""
    name = str(status.get("job_name", ""))
    if settings.get("runtime") == "kubernetes":
        namespace = settings.get("namespace")
        where = f"-n {namespace}" if namespace else "--runtime kubernetes"
        is_not_done = status.get("state") in ("failed", STOPPED)
        return f"edl logs {name} {where}" if is_not_done else ""
    if status.get("exit_code") == 130:
        return ""  # the last line says how to go on
    if status.get("state") == "failed":
        return f"edl logs {name}"
    checkpoint = (status.get("best") or {}).get("checkpoint") or status.get("checkpoint")
    if not checkpoint or status.get("command") != "train":
        return ""
    # Without other data, that of the training: a command that can be pasted, and then changed.
    data = settings.get("validation_data") or settings.get("training_data")
    words = ["edl", "evaluate", *_flags(settings, "evaluate")]
    words += ["--validation_data", str(data), "--checkpoint_dir_for_init", str(checkpoint)]
    return shlex.join(words)


def _flags(settings: dict[str, Any], command: str) -> list[str]:
    """Return what the job was given, as far as it has a meaning for the command."""
    words: list[str] = []
    for knob in knobs():
        value = settings.get(knob.name, knob.default)
        if command not in knob.of or knob.name in _OWN or value == knob.default:
            continue
        if value is None or (knob.name == "num_ps" and not value):  # of a job without servers
            continue
        text = as_text(value)
        words += [f"--{knob.name}={text}"] if knob.kind is bool else [f"--{knob.name}", text]
    return words
