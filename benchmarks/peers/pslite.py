"""ps-lite: dense push and pull by pslite.cc. Scheduler, server, worker.

python -m benchmarks.peers.pslite BINARY
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from benchmarks.peers import micro
from benchmarks.peers.work import answer


def main(binary: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "1",
        "ENABLE_SERVER_MULTIPULL": "0",  # its own benchmark sets that
    }
    command = [binary, *map(str, (micro.TENSORS, micro.ELEMENTS, micro.CYCLES, micro.LR))]
    roles = [
        subprocess.Popen(
            command,
            env={**environment, "DMLC_ROLE": role},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for role in ("scheduler", "server", "worker")
    ]
    worker = roles[-1]
    pushes = 0

    def cycles() -> None:
        nonlocal pushes
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
        value = float(worker.stdout.readline())
        pushes += micro.CYCLES
        expected = pushes * micro.LR * 3.5
        assert abs(value - expected) < 1e-3 * expected, (value, expected)

    try:
        answer(cycles, micro.CYCLES)
    finally:
        for role in roles:
            role.kill()
            role.wait()


if __name__ == "__main__":
    main(sys.argv[1])
