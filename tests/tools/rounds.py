"""Rounds of a launched script without `edl launch`: 1 replica, then 2, then 1.

    python -m tools.rounds FOLDER TOLD KILLED MODULES SCRIPT [EXAMPLE ARGUMENT...]

The first round is told to make room after step TOLD, the second loses a replica to SIGKILL after
step KILLED, the third runs to the end; beside them the script runs once more as `plain`, and an
example as a job of one replica, whose words go to `example.out`. All are forked from this process,
which imports the modules (of a trainer: 5 s of a processor) once. `ends` in FOLDER gets their exit
codes, -9 for SIGKILL, by round and rank; those of `plain` and of the example last.
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


def run(
    folder: Path, told: int, killed: int, modules: list[str], script: Path, *example: str
) -> list[list[int]]:
    """Run it all in a process; return the exit codes."""
    arguments = str(folder), str(told), str(killed), ",".join(modules), str(script), *example
    command = [sys.executable, "-m", "tools.rounds", *arguments]
    with open(folder / "log", "wb") as out:
        process = subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        )
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
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stores: list[object] = []

    def begin(
        self, round: int, replicas: int, *command: str, checkpoints: str = "checkpoints"
    ) -> list[int]:
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
            "EDL_CHECKPOINT_PATH": str(self._folder / checkpoints),
            "EDL_REPORT_FILE": str(self._folder / "report.json"),
        }
        return [
            self.fork({**told, "RANK": str(rank), "LOCAL_RANK": str(rank)}, *command)
            for rank in range(replicas)
        ]

    def fork(self, environment: dict[str, str], *command: str) -> int:
        """Run a script with its arguments in a process; return its id."""
        if pid := os.fork():
            return pid
        code = 1
        try:
            os.environ.update(environment)
            if environment.get("EDL_CHECKPOINT_PATH", "").endswith("example"):
                os.dup2(os.open(self._folder / "example.out", os.O_WRONLY | os.O_CREAT), 1)
            sys.argv = list(command)
            runpy.run_path(command[0], run_name="__main__")
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
    where, told, killed, modules, script, *example = sys.argv[1:]
    for module in modules.split(","):
        importlib.import_module(module)
    folder, command = Path(where), (script, where)
    rounds = _Rounds(folder)
    plain = rounds.fork({}, *command, "plain")
    shown = rounds.begin(1, 1, *example, checkpoints="example") if example else []
    books.set_limit(folder, 1, int(told))
    first = rounds.begin(1, 1, *command)
    rounds.until(1, int(told), first)
    os.kill(first[0], signal.SIGTERM)
    ends = [_ends(first)]
    books.set_limit(folder, 2, int(killed))
    second = rounds.begin(2, 2, *command)
    rounds.until(2, int(killed), second)
    os.kill(second[1], signal.SIGKILL)
    os.kill(second[0], signal.SIGTERM)
    ends.append(_ends(second))
    (folder / "limit").unlink()
    ends.append(_ends(rounds.begin(3, 1, *command)))
    ends += [_ends([plain]), _ends(shown)]
    (folder / "ends").write_text(json.dumps(ends))


def _ends(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


if __name__ == "__main__":
    main()
