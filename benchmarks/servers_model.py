"""The model of a job on servers (edl.goodput) beside Optimus' form: predicted against measured.

    python -m benchmarks.servers_model [--rounds 3] [--ahead]     from the repository root

Real jobs of `edl train`, the DeepFM of the zoo with each number of workers and servers; of each the
run with the median throughput. Both models are fitted to few of them, below the knee, and asked
about the others. Optimus (Peng et al., EuroSys '18) has one minibatch size and 4 coefficients, none
negative: records/s = w / (a + b w/p + c w + d p); so it is given 4 points of each size, and ours
the same ones. Ours is given 3 and 4 points of all sizes besides.

What a machine of 2 cores can show: whether phases measured in a real job, with all of its calls,
waits and books, predict its throughput elsewhere. What it cannot: a knee of its own. There workers
and servers share the cores, so that more of anything is no faster. Hence every time that matters is
a pause and not work: a step pauses as that of a larger model (benchmarks/phased_deepfm.py), and a
server is slowed by an injected service: each push waits at a failpoint until the station of that
server, one at a time, has served it. So the knee is made to appear, at 2 to 5 workers, in the place
where a real one would be: in the server's call. That the service is exact, that the other parts of
a round vary little, and that the hottest server has SHARE of the rows, is of our making.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import socketserver
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure, page, training
from edl.common import faults
from edl.goodput import ServersPoint, fit_servers_params

WORKERS, SERVERS, SIZES = (1, 2, 3, 4, 6), (1, 2), (128, 512)
OWN_S, OWN_RECORD_S = 0.02, 1.5e-4  # of a minibatch's compute
SERVE_S, SERVE_RECORD_S = 0.002, 1.5e-4  # of a push
SHARE = 0.6  # of the rows, on the first of two servers
GIVEN = ((1, 1), (2, 1), (1, 2), (2, 2))  # workers and servers, to either model
FEW = {  # workers, servers, minibatch, to ours
    "3 points": ((1, 1, 128), (2, 1, 512), (2, 2, 128)),
    "4 points": ((1, 1, 128), (2, 1, 512), (2, 2, 128), (1, 2, 512)),
}
TIMES = 20
WARM_UP = 8  # minibatches of each worker
DEADLINE_S = 240.0
Place = tuple[int, int, int]
Speed = Callable[[int, int, int], float]  # records/s of workers, servers, minibatch


class Stations(socketserver.ThreadingUnixStreamServer):
    """The stations that servers ask at their failpoints: each waits there until it is served."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, serve_s: Sequence[float]) -> None:
        super().__init__(str(path), _Call)
        self.variable = f"{path},ps.push"
        self.serve_s = serve_s  # of a push, by server
        self._free = [0.0 for _ in serve_s]
        self._lock = threading.Lock()
        self.busy_s = [0.0 for _ in serve_s]

    def serve(self, index: int) -> None:
        """Return when the station has served all that came before, and this."""
        with self._lock:  # the clock decides, not who of us wakes when: the station takes no longer
            self._free[index] = max(self._free[index], time.perf_counter()) + self.serve_s[index]
            self.busy_s[index] += self.serve_s[index]
            pause_s = self._free[index] - time.perf_counter()
        time.sleep(max(0.0, pause_s))


class _Call(socketserver.StreamRequestHandler):
    server: Stations

    def handle(self) -> None:
        self.server.serve(json.loads(self.rfile.readline())["index"])
        with contextlib.suppress(BrokenPipeError):  # the job was killed
            self.wfile.write(b'{"do": "continue"}\n')


@contextlib.contextmanager
def stations(folder: Path, servers: int, minibatch: int) -> Iterator[Stations]:
    """Serve the pushes to so many servers, for as long as one of that size takes."""
    shares = (1.0,) if servers == 1 else (SHARE, 1 - SHARE)
    serve_s = [SERVE_S + SERVE_RECORD_S * minibatch * share for share in shares]
    with Stations(folder / "stations", serve_s) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        try:
            yield serving
        finally:
            serving.shutdown()


def measured(train: Path, place: Place, seconds: float, ahead: int) -> ServersPoint:
    """Run a job there, and return what its workers and stations have told in so many seconds."""
    workers, servers, minibatch = place
    with (
        tempfile.TemporaryDirectory(prefix="edl-") as text,
        stations(Path(text), servers, minibatch) as serving,
    ):
        os.environ |= {"PHASES": text, faults.VARIABLE: serving.variable}
        with training.running(
            model_def=Path(__file__).with_name("phased_deepfm.py"),
            model_params=f"own_s={OWN_S},own_record_s={OWN_RECORD_S}",
            training_data=train,
            num_workers=workers,
            num_ps=servers,
            use_async="true",
            worker_threads=1,
            minibatch_size=minibatch,
            num_minibatches_per_task=8,
            num_epochs=1_000,
            pull_ahead=ahead,
        ):
            _wait(Path(text), workers)
            before, busy, began = _told(Path(text)), list(serving.busy_s), time.perf_counter()
            time.sleep(seconds)
            after, ended = list(serving.busy_s), time.perf_counter()
            spent = _told(Path(text))
            spent.subtract(before)
    wall_s, count = ended - began, spent["minibatches"]
    shares = [(b - a) / wall_s for a, b in zip(busy, after, strict=True)]
    return ServersPoint(
        *place,
        records_per_s=count * minibatch / wall_s,
        data_s=spent["data"] / count,
        compute_s=spent["compute"] / count,
        pull_s=spent["pull"] / count,
        push_s=spent["push"] / count,
        busy=min(1.0, max(shares)),
        share=1.0 if servers == 1 else SHARE,
    )


def _told(folder: Path) -> Counter[str]:
    """Return what all workers have written, summed up."""
    return sum((Counter(json.loads(f.read_text())) for f in folder.glob("*.json")), Counter())


def _wait(folder: Path, workers: int) -> None:
    """Wait until so many workers have warmed up."""
    give_up = time.monotonic() + DEADLINE_S
    while time.monotonic() < give_up:
        told = [json.loads(f.read_text()) for f in folder.glob("*.json")]
        if len(told) == workers and all(each["minibatches"] >= WARM_UP for each in told):
            return
        time.sleep(0.2)
    raise TimeoutError(f"{workers} workers have not begun in {DEADLINE_S:g} s")


# -- The models


def optimus(points: Sequence[ServersPoint]) -> Speed:
    """Return Optimus' asynchronous form, fitted to points of one minibatch size."""
    from scipy.optimize import nnls

    places = [(p.workers, p.servers) for p in points]
    round_s = np.array([p.workers * p.minibatch / p.records_per_s for p in points])
    found, _ = nnls(_terms(places) / round_s[:, None], np.ones(len(points)))

    def speed(workers: int, servers: int, minibatch: int) -> float:
        return float(workers * minibatch / (_terms([(workers, servers)]) @ found)[0])

    return speed


def _terms(places: Sequence[tuple[int, int]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([(1, w / p, w, p) for w, p in places])


def ours(points: Sequence[ServersPoint]) -> Speed:
    return fit_servers_params(points).throughput


# -- Tables


def compared(found: dict[Place, ServersPoint]) -> str:
    """Make the tables: of each size by itself, and of ours over all sizes."""
    heads = ["minibatch", "workers", "servers", "busy", "measured, records/s"]
    rows, errors = [], {"ours": [], "Optimus": []}
    for size in SIZES:
        given = [found[w, p, size] for w, p in GIVEN]
        models = {"ours": ours(given), "Optimus": optimus(given)}
        for place in [p for p in found if p[2] == size and p[:2] not in GIVEN]:
            cells = [_against(model, found[place]) for model in models.values()]
            rows.append([*_place(found[place]), *(text for text, _ in cells)])
            for name, (_, error) in zip(models, cells, strict=True):
                errors[name].append(error)
    text = page.table([*heads, *models], rows) + "\n\n" + _summary(errors)
    for name, places in FEW.items():
        points = [found[place] for place in places]
        params = fit_servers_params(points)
        unseen = [found[place] for place in found if place not in places]
        cells = [_against(params.throughput, point) for point in unseen]
        text += f"\n\n**Ours over all sizes, from {name}** {', '.join(map(str, places))}:\n\n"
        rows = [[*_place(each), cell] for each, (cell, _) in zip(unseen, cells, strict=True)]
        text += page.table([*heads, "ours"], rows)
        text += "\n\n" + _summary({"ours": [error for _, error in cells]})
        knees = ", ".join(
            f"{float(params.knee(p, size)):.1f} ({p} servers, {size})"
            for size, p in itertools.product(SIZES, SERVERS)
        )
        text += f" Knees in workers: {knees}.\n\n`{_rounded(params)}`"
    return text


def _place(point: ServersPoint) -> list[str]:
    busy = f"{point.busy:.2f}" if point.busy else ""
    rate = f"{point.records_per_s:,.0f}"
    return [str(point.minibatch), str(point.workers), str(point.servers), busy, rate]


def _against(speed: Speed, point: ServersPoint) -> tuple[str, float]:
    predicted = float(speed(point.workers, point.servers, point.minibatch))
    error = predicted / point.records_per_s - 1
    return f"{predicted:,.0f} ({error:+.0%})", abs(error)


def _summary(errors: dict[str, list[float]]) -> str:
    each = [
        f"{name} {statistics.median(found):.1%} in the median, {max(found):.1%} at worst"
        for name, found in errors.items()
    ]
    return f"Errors at {len(next(iter(errors.values())))} unseen points: {'; '.join(each)}."


def _rounded(params: Any) -> str:
    return ", ".join(f"{k} {v:.3g}" for k, v in dataclasses.asdict(params).items())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.servers_model")
    parser.add_argument("--seconds", type=float, default=8.0, help="that each point is measured")
    parser.add_argument("--rounds", type=int, default=3, help="of all points")
    parser.add_argument("--ahead", action="store_true", help="with --pull_ahead 1")
    parser.add_argument("--points", type=Path, help="keep them here, and go on with those there")
    given = parser.parse_args()
    kept = given.points.read_text() if given.points and given.points.exists() else "[]"
    points = [ServersPoint(**each) for each in json.loads(kept)]
    before = measure.load()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDL_HOME"] = folder
        command = [sys.executable, "-m", "edl", "data", "prepare", "nycflights13-small"]
        subprocess.run([*command, "--out", folder], check=True, stdout=subprocess.DEVNULL)
        train = longer(Path(folder) / "nycflights13-small" / "train.npz")
        places = list(itertools.product(SIZES, SERVERS, WORKERS)) * given.rounds
        for size, servers, workers in places[len(points) :]:
            place = workers, servers, size
            points.append(measured(train, place, given.seconds, int(given.ahead)))
            print(f"  {points[-1]}", file=sys.stderr, flush=True)
            if given.points:
                given.points.write_text(json.dumps([dataclasses.asdict(each) for each in points]))
    print(f"{measure.machine()}\n- load before: {before}, after: {measure.load()}\n")
    print(compared(medians(points)))


def medians(points: Sequence[ServersPoint]) -> dict[Place, ServersPoint]:
    """Return by place the point whose throughput is the median of its rounds."""
    found: dict[Place, list[ServersPoint]] = {}
    for point in points:
        found.setdefault((point.workers, point.servers, point.minibatch), []).append(point)
    ranked = {p: sorted(all_, key=lambda each: each.records_per_s) for p, all_ in found.items()}
    return {place: each[len(each) // 2] for place, each in ranked.items()}


def longer(train: Path) -> Path:
    """Write the records TIMES over: nobody shall wait for the last tasks of an epoch."""
    path = train.with_name("longer.npz")
    np.savez(path, **{name: np.tile(values, TIMES) for name, values in np.load(train).items()})
    return path


if __name__ == "__main__":
    main()
