"""The peers beside ours, in alternation.

    python -m benchmarks.peers.driver --peers FOLDER [--quick] [--only rows dense deepfm]

`rows` and `dense`: every end is ready before the first round, and does one sample a round.
`deepfm`: a sample is a whole run of new processes, so that the losses are those after the same
samples; start and the first minibatches are not measured. Peers that cannot be had, or fail in a
first try, are named below the table with the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks import parameters
from benchmarks.measure import Sample, alternate, sample, spread, table
from benchmarks.peers import micro, work
from edl.nn.model_spec import DenseSpec, ModelSpec, TableSpec
from edl.nn.optimizers import SGD, Adagrad

ROUNDS, QUICK_ROUNDS = 7, 1
STEPS, QUICK_STEPS = 150, 30
DEADLINE_S = 300.0  # of a run
END_S = 20.0  # for a program to end by itself
HERE = Path(__file__).parents[2]  # the repository's root: where the programs run


class Unavailable(Exception):
    """A peer is not there, or does not run; the message says why."""


@dataclass(frozen=True)
class Peer:
    """A program of this package. `home`: whose files it needs; `python`: in that environment."""

    module: str
    home: str = ""
    python: bool = False
    arguments: tuple[str, ...] = ()

    def command(self, peers: Path) -> list[str]:
        """Return what to run; "{}" in the arguments is the home. Raises Unavailable."""
        home = peers.absolute() / self.home
        failed = peers / f"{self.home}.failed"
        if failed.exists():
            raise Unavailable(failed.read_text().strip())
        if self.home and not home.is_dir():
            raise Unavailable("not set up: python -m benchmarks.peers.setup --into FOLDER")
        interpreter = str(home / "bin/python") if self.python else sys.executable
        arguments = [argument.format(home) for argument in self.arguments]
        return [interpreter, "-m", f"benchmarks.peers.{self.module}", *arguments]


PEERS_ROWS = {
    "ElasticDL's Go server": Peer("elasticdl", "elasticdl", arguments=("{}/elasticdl_ps", "rows")),
}
ALL_REDUCE = "gloo all-reduce, 2 processes"
PEERS_DENSE = {
    ALL_REDUCE: Peer("gloo"),
    "MXNet's dist_async": Peer("mxnet_kv", "mxnet", python=True),
    "ps-lite": Peer("pslite", "pslite", arguments=("{}/pslite",)),
    "ElasticDL's Go server": Peer("elasticdl", "elasticdl", arguments=("{}/elasticdl_ps", "dense")),
}
OURS = "edl, 1 worker + 1 server"
PEERS_DEEPFM = {
    OURS: Peer("ours"),
    "edl, store inside the worker": Peer("ours", arguments=("--in_process",)),
    "edl, rows made as their ids come": Peer("ours", arguments=("--growing",)),
    "plain torch, 1 process": Peer("torch_plain"),
    "TensorFlow's ParameterServerStrategy": Peer("tf_ps", "tensorflow", python=True),
    "torch RPC": Peer("torch_rpc"),
    "Ray": Peer("ray_ps", "ray", python=True),
}


def rows_and_dense(peers: Path, rounds: int = ROUNDS) -> str:
    """Make the tables of `rows` and of `dense`. `peers`: the folder that setup.py was given."""
    return f"{rows(peers, rounds)}\n\n{dense(peers, rounds)}"


def rows(peers: Path, rounds: int = ROUNDS) -> str:
    """Pull, then push 100,000 unique rows of a table of 2 M, dim 16, Adagrad."""
    of = micro.Rows()
    batches: list[parameters.Batch] = [({"t": (ids, of.grads)}, {}) for ids in of.batches]
    spec = ModelSpec((), (TableSpec("t", micro.DIM),), Adagrad(lr=micro.LR))

    def filled(end: parameters.Here | parameters.There) -> Callable[[], Sample]:
        for ids in of.everything:
            end.push({"t": (ids, of.grads)}, {})
        return _cycles(end, batches, micro.BATCH)

    with _ours(spec, {}, filled) as ours, _theirs(PEERS_ROWS, peers) as (theirs, missing):
        found = alternate({**ours, **theirs}, rounds)
    cost = ("CPU ms per 100,000 rows", micro.BATCH * 1e3)
    return table(found, list(theirs) or list(ours)[:1], ("M rows/s", 1e-6), cost) + missing


def dense(peers: Path, rounds: int = ROUNDS) -> str:
    """Pull, then push 100 MB, SGD, by one worker.

    In sync two workers push and get the new values in one round trip, which is what the all-reduce
    (of the same bytes, without a step) is for.
    """
    grads = micro.tensors()
    spec = ModelSpec(tuple(DenseSpec(n, v.shape) for n, v in grads.items()), (), SGD(lr=micro.LR))
    elements = sum(values.size for values in grads.values())
    with (
        contextlib.ExitStack() as stack,
        _ours(spec, grads, lambda end: _cycles(end, [({}, grads)], 1)) as ours,
        _theirs(PEERS_DENSE, peers) as (theirs, missing),
    ):
        for carrier in ("shared memory", "TCP"):
            transport = parameters.CARRIERS[carrier]
            crowd = stack.enter_context(parameters.exchanging(2, 2, elements, transport))
            ours[f"edl, 2 workers + 2 servers in sync, {carrier}"] = functools.partial(
                crowd.sample, micro.CYCLES
            )
        found = alternate({**ours, **theirs}, rounds)
    cost = ("CPU ms per cycle", 1e3)
    return table(found, [ALL_REDUCE], ("cycles/s", 1.0), cost) + missing


def deepfm(peers: Path, rounds: int = ROUNDS, steps: int = STEPS) -> str:
    """Train the same DeepFM on the same minibatches and first dense values; see work.py."""
    short = work.make(peers / f"data/deepfm-{QUICK_STEPS}.npz", QUICK_STEPS)
    file = work.make(peers / f"data/deepfm-{steps}.npz", steps)
    losses: dict[str, list[float]] = {}
    variants: dict[str, Callable[[], Sample]] = {}
    missing = ""
    for name, peer in PEERS_DEEPFM.items():
        try:
            command = peer.command(peers)
            _run(command, short)
        except Unavailable as reason:
            missing += f"\n\n{name}: not available: {reason}"
            continue

        def once(name: str = name, command: list[str] = command) -> Sample:
            line = _run(command, file)
            losses.setdefault(name, []).append(line.pop("loss"))
            return Sample(**line)

        variants[name] = once
    found = alternate(variants, rounds, warm_up=False)
    cost = ("CPU ms per 1,000 samples", 1e6)
    learned = "; ".join(f"{name}: {spread(values)}" for name, values in losses.items())
    return (
        table(found, [OURS], ("samples/s", 1.0), cost)
        + f"\n\nMean loss of the last {work.LAST} of {steps} minibatches: {learned}."
        + missing
    )


# -- Ours


@contextlib.contextmanager
def _ours(
    spec: ModelSpec,
    dense: parameters.Dense,
    ready: Callable[[parameters.Here | parameters.There], Callable[[], Sample]],
) -> Iterator[dict[str, Callable[[], Sample]]]:
    with contextlib.ExitStack() as stack:
        variants = {"edl, store in process": ready(parameters.Here(spec, dense))}
        for name, transport in parameters.CARRIERS.items():
            there = stack.enter_context(parameters.serving(1, spec, dense, transport))
            variants[f"edl, {name}"] = ready(there)
        yield variants


def _cycles(
    end: parameters.Here | parameters.There, batches: list[parameters.Batch], amount: int
) -> Callable[[], Sample]:
    turn = itertools.cycle(batches)

    def work() -> None:
        for rows, dense in itertools.islice(turn, micro.CYCLES):
            end.pull(rows, dense)
            end.push(rows, dense)

    return lambda: sample(amount * micro.CYCLES, work, end.pids)


# -- Theirs


@contextlib.contextmanager
def _theirs(
    them: Mapping[str, Peer], peers: Path
) -> Iterator[tuple[dict[str, Callable[[], Sample]], str]]:
    """Yield the programs that are ready, and a word on each that is not.

    A program is ready when its first sample is taken.
    """
    variants: dict[str, Callable[[], Sample]] = {}
    missing = ""
    with contextlib.ExitStack() as stack:
        for name, peer in them.items():
            try:
                program = stack.enter_context(_program(peer.command(peers)))
                program()
            except Unavailable as reason:
                missing += f"\n\n{name}: not available: {reason}"
            else:
                variants[name] = program
        yield variants, missing


@contextlib.contextmanager
def _program(command: list[str]) -> Iterator[Callable[[], Sample]]:
    """Start a program that answers a line on its standard input with a sample (work.answer)."""
    with tempfile.TemporaryFile("w+") as errors, _started(command, errors) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask() -> Sample:
            with contextlib.suppress(BrokenPipeError):  # then there is no answer
                process.stdin.write("\n")
                process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                errors.seek(0)
                raise Unavailable(_last(errors.read()))
            return Sample(**json.loads(line))

        yield ask


def _run(command: list[str], file: Path) -> dict[str, Any]:
    """Return a program's one line. Raises Unavailable."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as errors:
        with _started([*command, str(file.absolute())], errors, threads) as process:
            try:
                output, _ = process.communicate(timeout=DEADLINE_S)
            except subprocess.TimeoutExpired as error:
                raise Unavailable(f"no end in {DEADLINE_S:g} s") from error
        lines = [line for line in output.splitlines() if line.startswith("{")]
        if len(lines) != 1:
            errors.seek(0)
            raise Unavailable(_last(errors.read()))
        return dict(json.loads(lines[0]))


@contextlib.contextmanager
def _started(
    command: list[str], errors: IO[str], more: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a program in a session of its own; end its input, then what is left of it."""
    process = subprocess.Popen(
        command,
        cwd=HERE,
        env={**os.environ, **(more or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last(errors: str) -> str:
    lines = [line for line in errors.splitlines() if line.strip()]
    return lines[-1] if lines else "it ended without a word"


def main() -> None:
    parts = {"rows": rows, "dense": dense, "deepfm": deepfm}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.driver")
    parser.add_argument("--peers", type=Path, required=True, help="the folder of setup --into")
    parser.add_argument("--quick", action="store_true", help="one short round: does it run?")
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    given = parser.parse_args()
    for name in given.only:
        if not given.quick:
            print(f"{parts[name](given.peers)}\n")
        elif name == "deepfm":
            print(f"{deepfm(given.peers, QUICK_ROUNDS, QUICK_STEPS)}\n")
        else:
            print(f"{parts[name](given.peers, QUICK_ROUNDS)}\n")


if __name__ == "__main__":
    main()
