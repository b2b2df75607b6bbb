"""Failpoints: named moments at which a test may make something fail (as FreeBSD's fail(9)).

`point("ps.push.applied")` does nothing unless EDL_FAULTS names a controller, a unix socket, and the
points that it waits for: `EDL_FAULTS=/path/to/socket,ps.push.applied,master.lease`. Then whoever
reaches one of them says so ({"point", "role", "index", "pid", "at", ...}, one JSON line) and goes
on when the controller answers a line, or after `_PATIENCE_S`. So a test stops every process of a
job at the exact moment that it is about, and does there what it likes: kill it, kill another, fill
a disk. The answer's `"do"` is what the process itself shall do: "continue"; "unreachable" (raise
Unreachable, as if a reply was lost); "oserror" with "errno"; "sleep" with "for_s"; "off" (continue,
and never ask again).
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from .errors import Unreachable

VARIABLE = "EDL_FAULTS"
_PATIENCE_S = 60.0
_path, *_names = os.environ.get(VARIABLE, "").split(",")
_armed = set(_names)


def point(name: str, **about: Any) -> None:
    """Tell the controller that this moment has come. `about` goes to it.

    Raises what the controller orders.
    """
    if name in _armed:
        _ask(name, about)


def _ask(name: str, about: dict[str, Any]) -> None:
    told = {
        "point": name,
        "role": os.environ.get("EDL_ROLE", "master"),
        "index": int(os.environ.get("EDL_INDEX", "0")),
        "pid": os.getpid(),
        "at": time.monotonic(),
        **about,
    }
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(_PATIENCE_S)
        try:
            line.connect(_path)
            line.sendall(json.dumps(told).encode() + b"\n")
            answer = json.loads(line.makefile().readline() or '{"do": "off"}')
        except OSError:  # the controller has gone: there is nothing more to test
            answer = {"do": "off"}
    match answer["do"]:
        case "off":
            _armed.discard(name)
        case "unreachable":
            raise Unreachable(f"{name}: the controller has taken the reply")
        case "oserror":
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        case "sleep":
            time.sleep(answer["for_s"])
