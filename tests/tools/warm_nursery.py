"""Fork the nurseries of all jobs of a run of tests from one process that has imported torch.

A job's nursery imports for 2 to 4 s, and hundreds of tests run one. `python -m edl.worker
--nursery` finds tools/warm/sitecustomize.py, which asks here for a fork that has its descriptors,
environment, folder and path, and ends as that does. Whoever asks from elsewhere, with another
OMP_NUM_THREADS, say, or from a namespace of its own (warm/surroundings.py), is told no, and imports
for itself; so does everybody until this is ready. Without `pytest -n`, and in pods, nurseries are
never forked.

It ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

VARIABLE = "EDL_TEST_NURSERY"
_ROOM = "ROOM"  # for the environment of a fork in /proc/PID/environ, by which tests find processes
_ROOM_NBYTES = 1 << 16
_NBYTES = 1 << 20


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Run one for whatever is started from now on, until the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[VARIABLE] = f"{folder}/nursery"
        warm = str(Path(__file__).with_name("warm"))
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (warm, before)))
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.warm_nursery"],
            stdin=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            # One thread of OpenMP, as tests give to their jobs.
            env={**os.environ, "OMP_NUM_THREADS": "1", _ROOM: " " * _ROOM_NBYTES},
            start_new_session=True,
        )
        try:
            yield
        finally:
            process.communicate(timeout=60.0)


def main() -> None:
    where = importlib.import_module("surroundings").where  # beside sitecustomize, which asks
    mine = where(os.environ)
    Path(f"{os.environ[VARIABLE]}.json").write_text(json.dumps(mine))
    for module in ("torch._dynamo", "edl.ps.__main__", "edl.worker.__main__"):
        importlib.import_module(module)
    importlib.import_module("edl.kernels.compile").prepare()
    gc.collect()
    gc.freeze()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(os.environ[VARIABLE])
    listener.listen(64)
    selector = selectors.DefaultSelector()
    for each in (0, wake_read, listener):
        selector.register(each, selectors.EVENT_READ)
    asked: dict[int, socket.socket] = {}  # by the fork's pid
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                return
            if key.fileobj == wake_read:
                os.read(wake_read, 4096)
                for pid, status in _ended():
                    there = asked.pop(pid)
                    with contextlib.suppress(OSError):  # it was killed
                        there.send(str(status).encode())
                    with contextlib.suppress(KeyError):
                        selector.unregister(there)
                    there.close()
            elif key.fileobj is listener:
                there, _ = listener.accept()
                if pid := _fork(there, mine):
                    asked[pid] = there
                    selector.register(there, selectors.EVENT_READ, pid)
                else:
                    there.close()
            else:  # whoever has asked was killed, and so is the fork
                os.kill(key.data, signal.SIGKILL)
                selector.unregister(key.fileobj)


def _ended() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found


def _fork(there: socket.socket, mine: dict[str, str]) -> int:
    """Return the pid of the fork that whoever is there asks for; 0: he is told to import."""
    told, descriptors, *_ = socket.recv_fds(there, _NBYTES, 3)
    asked = json.loads(told or b"{}")  # "": whoever asked was killed
    fits = asked.get("where") == mine
    with contextlib.suppress(OSError):  # likewise
        there.send(b"yes" if fits else b"no")
    pid = os.fork() if fits else 0
    if fits and not pid:
        _become(asked, descriptors)
    for each in descriptors:
        os.close(each)
    return pid


def _become(asked: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Become the nursery that was asked for."""
    code = 1
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _show(asked["env"])
        os.environ.clear()
        os.environ.update(asked["env"])
        os.chdir(asked["cwd"])
        sys.path[:] = [asked["cwd"], *asked["path"]]
        sys.argv = ["edl.worker", "--nursery", asked["strategy"]]
        importlib.import_module("edl.common.process").show_stacks()
        code = importlib.import_module("edl.worker.__main__").main()
    except BaseException:  # noqa: BLE001 - the last frame of a process: print, then leave
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _show(env: dict[str, str]) -> None:
    """Write an environment where /proc shows the one that this process began with."""
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    began, ended = int(fields[47]), int(fields[48])  # env_start, env_end: man proc
    there = ctypes.string_at(began, ended - began).index(b" " * _ROOM_NBYTES)
    lines = b"".join(b"\0%s=%s" % (os.fsencode(k), os.fsencode(v)) for k, v in env.items())
    assert len(lines) < _ROOM_NBYTES
    ctypes.memmove(began + there, lines.ljust(_ROOM_NBYTES, b"\0"), _ROOM_NBYTES)


if __name__ == "__main__":
    main()
