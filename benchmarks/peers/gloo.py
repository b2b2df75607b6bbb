"""torch.distributed, gloo: an all-reduce of the dense tensors' bytes between two processes."""

from __future__ import annotations

import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import distributed

from benchmarks.peers import micro
from benchmarks.peers.work import answer

NUMBER = micro.TENSORS * micro.ELEMENTS


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "meeting"
        other = spawn.Process(target=follow, args=(meeting, theirs), daemon=True)
        other.start()
        values = _join(meeting, 0)

        def cycles() -> None:
            mine.send("go")
            _reduce(values)

        answer(cycles, micro.CYCLES)
        mine.send("end")
        other.join()


def follow(meeting: Path, line: Connection) -> None:
    values = _join(meeting, 1)
    while line.recv() == "go":
        _reduce(values)


def _join(meeting: Path, rank: int) -> torch.Tensor:
    """Return float32[NUMBER], after the processes have found each other."""
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    return torch.zeros(NUMBER)


def _reduce(values: torch.Tensor) -> None:
    for _ in range(micro.CYCLES):
        distributed.all_reduce(values)


if __name__ == "__main__":
    main()
