"""A process that has imported torch and all our code, and forks workers and servers from there.

A fresh interpreter needs seconds to import torch; a fork of this one is a worker at once, so that a
job's processes share one import, and a preempted worker or server is replaced in a fraction of a
second. The nursery itself computes nothing, opens no socket and starts no thread: what is forked is
a clean interpreter.

It speaks JSON lines. In: {"id", "argv", "env", "log"}. Out: {"ready": true} once, then
{"id", "pid"} for each process started and {"pid", "status"} (as of os.waitpid) for each that ended.
It ends when its standard input does; what it forked then goes on by itself.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..common.process import STARVED, end_where_starved, is_starved
from ..common.settings import ANALYZE

_OTHERS = ("edl.ps", "edl.distill")  # modules whose own main is run


def run(main: Callable[[], int], strategy: str) -> int:
    """Serve until standard input ends.

    `main` is what a forked worker runs, with its own sys.argv; whose first argument is
    another module (edl.ps, edl.distill) runs that one's.
    """
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    _prepare(strategy)
    _say({"ready": True})
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    selector.register(wake_read, selectors.EVENT_READ)
    rest = b""
    while True:
        for key, _ in selector.select():
            if key.fileobj is not requests:
                os.read(wake_read, 4096)
                _reap()
                continue
            data = requests.read(65536)
            if not data:
                return 0
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                request = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    for mine in (requests.fileno(), wake_read, wake_write):
                        os.close(mine)
                    if request["argv"][0] in _OTHERS:
                        main = importlib.import_module(f"{request['argv'][0]}.__main__").main
                    _become(request, main)
                _say({"id": request["id"], "pid": pid})


def _prepare(strategy: str) -> None:
    """Import once what each process would import by itself before its first step."""
    if strategy == ANALYZE:
        importlib.import_module("edl.worker.analyst")
        return
    importlib.import_module("edl.worker.describe")
    importlib.import_module("edl.worker.factory")
    if strategy != "ps":
        importlib.import_module("torch._dynamo")  # which torch.optim wants: 2 s
    if strategy != "allreduce":  # which has no servers
        importlib.import_module("edl.ps.__main__")
        importlib.import_module("edl.kernels.compile").prepare()


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say({"pid": pid, "status": status})


def _become(request: dict[str, Any], main: Callable[[], int]) -> None:
    """Become the process that was asked for, with its own session, environment and log.

    Never returns.
    """
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = request["argv"]
        end_where_starved()
        code = main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - the last frame of a process: print, then leave
        sys.excepthook(*sys.exc_info())
        code = STARVED if is_starved(error) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: the wake-up pipe tells; the handler only keeps SIGCHLD from being discarded."""


def _say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")
