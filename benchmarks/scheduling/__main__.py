"""Play Pollux's workloads with policies, and print a table beside what its authors published.

    python -m benchmarks.scheduling --data DIR --workload 6 --policy pollux

from the repository root. DIR is the folder of the artifact: workloads/workload-K.csv,
traces/APPLICATION/*.csv and results-pollux-1.0.json. Pollux's search takes a quarter of an hour a
workload.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads take longer to wake than to work

from edl.scheduler.policy import OBJECTIVES, make_policy
from edl.scheduler.simulator import plot
from edl.scheduler.simulator.application import read_applications
from edl.scheduler.simulator.play import KNOWN, Planner, Rules, cluster, play
from edl.scheduler.simulator.result import Outcome, Result
from edl.scheduler.simulator.workload import Arrival, read_workload

from .pollux import Pollux

_POLICIES = ("pollux", *OBJECTIVES)
_COLUMNS = (
    "workload | policy | mean JCT, s | p50 | p99 | makespan, s | restarts a job | GPU h "
    "| CPU s: policy | all"
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, row by row. `arguments`: by default those of the command."""
    options = _options(arguments)
    applications = read_applications(options.data / "traces")
    print(f"| {_COLUMNS} |\n|{' --- |' * (_COLUMNS.count('|') + 1)}", flush=True)
    for number in options.workload:
        path = options.data / f"workloads/workload-{number}.csv"
        arrivals = read_workload(path, applications)
        results = {"published": _published(options.data, path.stem, arrivals)}
        print(_row(number, "published", results["published"], None), flush=True)
        for name in options.policy:
            planner = _planner(name, options.seed)
            begun = time.process_time()
            results[name] = play(
                arrivals, applications, cluster(), planner, _rules(options), time.process_time
            )
            cpu_s = time.process_time() - begun
            print(_row(number, name, results[name], cpu_s), flush=True)
        if options.plots:
            _draw(options.plots, path.stem, results)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduling")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workload", type=int, nargs="+", default=list(range(1, 9)))
    parser.add_argument("--policy", nargs="+", choices=_POLICIES, default=["pollux"])
    parser.add_argument("--known", choices=KNOWN, default="none", help="of what is left")
    parser.add_argument("--restart", type=float, default=30.0, help="s that a change costs")
    parser.add_argument("--every", type=float, default=60.0, help="s between plans")
    parser.add_argument("--events", action="store_true", help="plan when jobs come or end, too")
    parser.add_argument("--history", action="store_true", help="new jobs know the last one's speed")
    parser.add_argument("--interference", type=float, default=0.0, help="share of speed lost")
    parser.add_argument("--seed", type=int, default=0, help="of Pollux's search, and of errors")
    parser.add_argument("--plots", type=Path, help="a folder for pictures as SVG")
    return parser.parse_args(arguments)


def _rules(options: argparse.Namespace) -> Rules:
    return Rules(
        every_s=options.every,
        by_events=options.events,
        restart_s=options.restart,
        interference=options.interference,
        history=options.history,
        known=options.known,
        seed=options.seed,
    )


def _planner(name: str, seed: int) -> Planner:
    return Pollux(seed).plan if name == "pollux" else make_policy(name).plan


def _published(data: Path, workload: str, arrivals: list[Arrival]) -> Result:
    """Return what Pollux's authors published of a workload: of each job its JCT, and no more."""
    jcts = json.loads((data / "results-pollux-1.0.json").read_text())["jcts"][workload]
    jobs = (
        Outcome(job.name, job.submitted, job.submitted + jcts[job.name], restarts=0, gpu_s=0)
        for job in arrivals
    )
    return Result(tuple(jobs), gpus=(), plans=0, policy_cpu_s=0)


def _row(workload: int, policy: str, result: Result, cpu_s: float | None) -> str:
    times = [result.mean, result.percentile(50), result.percentile(99), result.makespan]
    cells = [str(workload), policy, *(f"{each:,.0f}" for each in times)]
    if cpu_s is None:
        cells += [""] * 4
    else:
        cells += [f"{result.restarts:.1f}", f"{result.gpu_s / 3600:,.0f}"]
        cells += [f"{result.policy_cpu_s:,.1f}", f"{cpu_s:,.1f}"]
    return f"| {' | '.join(cells)} |"


def _draw(folder: Path, workload: str, results: Mapping[str, Result]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{workload}-jct.svg").write_text(plot.jct_by_job(results))
    played = {name: result for name, result in results.items() if result.gpus}
    (folder / f"{workload}-gpus.svg").write_text(plot.gpus_over_time(played))


if __name__ == "__main__":
    main()
