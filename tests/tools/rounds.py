"""Rounds of a launched script without `edl launch`: 1 replica, then 2, then 1.

    python -m tools.rounds SCRIPT FOLDER TOLD KILLED MODULE...

The first round is told to make room after step TOLD, the second loses a replica to SIGKILL after
step KILLED, the third runs to the end; beside them the script runs once more as `plain`. All are
forked from this process, which imports the modules (of a trainer: 5 s of a processor) once. `ends`
in FOLDER gets their exit codes, -9 for SIGKILL, by round and rank.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import psutil
from launched import books

TIMEOUT_S = 300.0


def run(script: Path, folder: Path, told: int, killed: int, *modules: str) -> list[list[int]]:
    """Run it all in a process; return the exit codes, those of `plain` last."""
    arguments = str(script), str(folder), str(told), str(killed), *modules
    command = [sys.executable, "-m", "tools.rounds", *arguments]
    with open(folder / "log", "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        try:
            process.wait(TIMEOUT_S)
        finally:
            for child in psutil.Process(process.pid).children() if process.poll() is None else []:
                child.kill()
            process.kill()
            process.wait()
    assert process.returncode == 0, (folder / "log").read_text()[-6000:]
    ends: list[list[int]] = json.loads((folder / "ends").read_text())
    return ends


class _Rounds:
    def __init__(self, script: Path, folder: Path) -> None:
        self._script = script
        self._folder = folder
        self._stores: list[object] = []

    def begin(self, round: int, replicas: int) -> list[int]:
        """Fork the replicas of a round; return their process ids."""
        from torch._C._distributed_c10d import TCPStore

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._stores.append(store)
        told = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": "it",
            "WORLD_SIZE": str(replicas),
            "LOCAL_WORLD_SIZE": str(replicas),
            "GROUP_RANK": "0",
            "EDL_ROUND": str(round),
            "EDL_CHECKPOINT_PATH": str(self._folder / "checkpoints"),
            "EDL_REPORT_FILE": str(self._folder / "report.json"),
        }
        return [
            self.fork({**told, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(replicas)
        ]

    def fork(self, environment: dict[str, str], *arguments: str) -> int:
        if pid := os.fork():
            return pid
        code = 1
        try:
            os.environ.update(environment)
            sys.argv = [str(self._script), str(self._folder), *arguments]
            runpy.run_path(str(self._script), run_name="__main__")
            code = 0
        except SystemExit as exit:
            code = int(exit.code or 0)
        except BaseException:  # noqa: BLE001  a forked process ends here, whatever happens
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def until(self, round: int, step: int, pids: list[int]) -> None:
        """Wait until rank 0 has noted this step of this round."""
        deadline = time.monotonic() + TIMEOUT_S
        path = self._folder / "books-0"
        while not path.exists() or f"\n{round} {step} " not in f"\n{path.read_text()}":
            assert os.waitpid(pids[0], os.WNOHANG) == (0, 0), "rank 0 has ended before"
            assert time.monotonic() < deadline
            time.sleep(0.02)


def main() -> None:
    script, folder, told, killed, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    rounds = _Rounds(Path(script), Path(folder))
    plain = rounds.fork({}, "plain")
    books.set_limit(Path(folder), 1, int(told))
    first = rounds.begin(1, 1)
    rounds.until(1, int(told), first)
    os.kill(first[0], signal.SIGTERM)
    ends = [_ends(first)]
    books.set_limit(Path(folder), 2, int(killed))
    second = rounds.begin(2, 2)
    rounds.until(2, int(killed), second)
    os.kill(second[1], signal.SIGKILL)
    os.kill(second[0], signal.SIGTERM)
    ends.append(_ends(second))
    (Path(folder) / "limit").unlink()
    ends.append(_ends(rounds.begin(3, 1)))
    ends.append(_ends([plain]))
    (Path(folder) / "ends").write_text(json.dumps(ends))


def _ends(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


if __name__ == "__main__":
    main()
