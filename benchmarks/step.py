"""The cost of a step beside plain torch: hybrid, ps and all-reduce beside DDP, CPU per record.

    python -m benchmarks.step [--only tables dense cpu threads] [--rounds 5]

Runs from the repository root.

The jobs are `edl train`, from the end of the first epoch on (benchmarks/training.py); a peer is a
loop of plain torch with the same definition, feed, minibatch and threads: one process, or two with
torch's DistributedDataParallel over gloo, the table a sparse nn.Embedding. `--minibatch_size` is a
worker's with `ps` and that of all workers with `hybrid` and `allreduce`: each worker has as many
records here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import measure
from benchmarks.measure import Sample, alternate, machine, table
from benchmarks.training import MINIBATCH, job, plain

MLP = str(Path(__file__).with_name("dense_mlp.py"))
edl = partial(job, num_minibatches_per_task=0)  # as many as the default has
COST = ("CPU ms per 1,000 records", 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=measure.ROUNDS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDL_HOME"] = folder
        command = [sys.executable, "-m", "edl", "data", "prepare", "nycflights13-small"]
        subprocess.run([*command, "--out", folder], check=True, stdout=subprocess.DEVNULL)
        train = Path(folder) / "nycflights13-small" / "train.npz"
        print(machine(), flush=True)
        for part in given.only:
            PARTS[part](train, given.rounds)


def compare(
    title: str, variants: dict[str, Callable[[], Sample]], baseline: str, rounds: int
) -> None:
    found = alternate(variants, rounds, warm_up=False)
    print(f"\n**{title}**\n\n{table(found, [baseline], ('records/s', 1.0), COST)}", flush=True)


def tables(train: Path, rounds: int) -> None:
    for hidden, epochs in ((64, 12), (1024, 3)):
        model = {"model_params": f"hidden={hidden}", "epochs": epochs}
        both = MINIBATCH * 2
        compare(
            f"DeepFM, hidden={hidden}, 2 workers with {MINIBATCH} records each",
            {
                "ps": partial(edl, train, workers=2, servers=2, **model),
                "hybrid": partial(
                    edl, train, workers=2, servers=2, strategy="hybrid", use_async="false",
                    minibatch_size=both, **model,
                ),
                "DDP": partial(plain, train, processes=2, hidden=hidden, epochs=epochs),
            },
            "ps",
            rounds,
        )  # fmt: skip


def dense(train: Path, rounds: int) -> None:
    for hidden, epochs in ((64, 12), (1024, 2)):
        compare(
            f"MLP, 3 layers of {hidden}, 2 workers with {MINIBATCH} records each",
            {
                "DDP": partial(
                    plain, train, processes=2, model_def=MLP, hidden=hidden, epochs=epochs
                ),
                "all-reduce": partial(
                    edl, train, workers=2, servers=0, strategy="allreduce", model_def=MLP,
                    model_params=f"hidden={hidden}", minibatch_size=MINIBATCH * 2, epochs=epochs,
                ),
            },
            "DDP",
            rounds,
        )  # fmt: skip


def cpu(train: Path, rounds: int) -> None:
    for minibatch, epochs in ((64, 4), (MINIBATCH, 12)):
        compare(
            f"DeepFM, minibatches of {minibatch}, one worker",
            {
                "plain torch": partial(plain, train, minibatch=minibatch, epochs=epochs),
                "ps, 1 server": partial(
                    edl, train, workers=1, servers=1, minibatch_size=minibatch, epochs=epochs
                ),
                "its worker": partial(
                    edl, train, workers=1, servers=1, minibatch_size=minibatch, epochs=epochs,
                    of_workers=True,
                ),
            },
            "plain torch",
            rounds,
        )  # fmt: skip


def threads(train: Path, rounds: int) -> None:
    for hidden, epochs in ((64, 12), (1024, 3)):
        how = {"workers": 1, "servers": 1, "model_params": f"hidden={hidden}", "epochs": epochs}
        compare(
            f"DeepFM, hidden={hidden}, one worker",
            {
                f"--worker_threads {number}": partial(edl, train, worker_threads=number, **how)
                for number in (1, 2)
            },
            "--worker_threads 1",
            rounds,
        )


PARTS = {"tables": tables, "dense": dense, "cpu": cpu, "threads": threads}


if __name__ == "__main__":
    main()
