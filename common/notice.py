"""A provider's notice that this machine will be taken: a command that waits for it.

Spot machines are told minutes or seconds before; how is each provider's own (an address that
answers, a file, an event). So the user gives a command that ends with 0 when the notice is there,
for example

    while ! curl -sf http://169.254.169.254/latest/meta-data/spot/instance-action; do sleep 2; done

and what follows is that of SIGTERM, which is sent to this process: a worker hands back its task, a
server leaves a last snapshot. A command that ends otherwise is started again after a pause.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

_AGAIN_S = 5.0


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def watch(
    command: str, on_notice: Callable[[], None] = _terminate, again_s: float = _AGAIN_S
) -> threading.Thread | None:
    """Run the command in the background; None where there is none."""
    if not command:
        return None
    thread = threading.Thread(
        target=_watch, args=(command, on_notice, again_s), name="notice", daemon=True
    )
    thread.start()
    return thread


def _watch(command: str, on_notice: Callable[[], None], again_s: float) -> None:
    told = False
    while True:
        # It is of this replica's process group, which the runtime kills as a whole.
        done = subprocess.run(
            command, shell=True, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        if done.returncode == 0:
            log.warning("the provider takes this machine: leaving in order")
            on_notice()
            return
        if not told:
            told = True
            log.warning(
                "the command of --preemption_notice ended with %d; started again every %g s",
                done.returncode,
                again_s,
            )
        threading.Event().wait(again_s)
