"""Does elasticity cost accuracy? DeepFM with 2 workers, and with workers going 2 -> 4 -> 1 -> 3.

    python benchmarks/elastic_quality.py --data edl-runs/data/nycflights13 --seeds 5

Runs the two variants in alternation, one pair a seed, async on 2 servers; scales when a quarter, a
half and three quarters of the records are done; evaluates along the way. Writes
docs/elastic-quality.md (the table) and docs/elastic-quality.svg (AUC over versions, mean of the
seeds). The claim to check: the means of the final AUCs differ by at most 0.001.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from edl.common.paths import job_folder
from edl.master.client import MasterClient

DOCS = Path(__file__).parents[1] / "docs"
ELASTIC = ((0.25, 4), (0.5, 1), (0.75, 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    found: dict[str, list[list[tuple[int, float]]]] = {"fixed": [], "elastic": []}
    with tempfile.TemporaryDirectory() as home:
        os.environ["EDL_HOME"] = home
        for seed in range(given.seeds):
            for variant, plan in (("fixed", ()), ("elastic", ELASTIC)):
                curve = run(f"{variant}-{seed}", given.data, seed, plan)
                found[variant].append(curve)
                print(f"seed={seed} {variant}: auc={curve[-1][1]:.5f}", flush=True)
    (DOCS / "elastic-quality.md").write_text(report(found))
    (DOCS / "elastic-quality.svg").write_text(picture(found))


def run(name: str, data: str, seed: int, plan: tuple[tuple[float, int], ...]) -> list[Any]:
    """Return (version, AUC) of each evaluation of one job; the last one is the final model's."""
    command = [
        *(sys.executable, "-m", "edl", "train", "--job_name", name, "--detach"),
        *("--model_def", "deepfm", "--training_data", f"{data}/train.npz"),
        *("--validation_data", f"{data}/validation.npz"),
        *("--num_epochs", "2", "--minibatch_size", "128", "--num_minibatches_per_task", "16"),
        *("--num_workers", "2", "--num_ps", "2", "--use_async", "--seed", str(seed)),
        *("--evaluation_steps", "500", "--worker_threads", "1"),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    folder = job_folder(name)
    token = (folder / "token").read_text().strip()
    master = MasterClient(json.loads((folder / "master.json").read_text())["address"], token=token)
    revision, status = master.status()
    left = list(plan)
    while status["state"] in ("starting", "running"):
        if left and status["records_done"] >= left[0][0] * status["records_total"] > 0:
            master.scale(left.pop(0)[1])
        revision, status = master.status(revision, wait_s=10.0)
    assert status["exit_code"] in (0, None), status
    assert not left, status
    return [(e["version"], e["metrics"]["auc"]) for e in status["evaluations"]]


def report(found: dict[str, list[list[tuple[int, float]]]]) -> str:
    finals = {variant: [curve[-1][1] for curve in curves] for variant, curves in found.items()}
    rows = [
        f"| {seed} | {fixed:.5f} | {elastic:.5f} | {elastic - fixed:+.5f} |"
        for seed, (fixed, elastic) in enumerate(
            zip(finals["fixed"], finals["elastic"], strict=True)
        )
    ]
    means = {variant: statistics.mean(values) for variant, values in finals.items()}
    spread = {variant: statistics.stdev(values) for variant, values in finals.items()}
    return "\n".join(
        [
            "# Elastic runs learn what fixed runs learn",
            "",
            "DeepFM on nycflights13 (261,877 records, 2 epochs, minibatch 128, async, 2 servers):",
            "2 workers throughout, against workers going 2 -> 4 -> 1 -> 3 at a quarter, a half and",
            "three quarters of the records. Final validation AUC by seed; made by",
            "`python benchmarks/elastic_quality.py`.",
            "",
            "| seed | 2 workers | 2 -> 4 -> 1 -> 3 | difference |",
            "|---|---|---|---|",
            *rows,
            (
                f"| mean | {means['fixed']:.5f} | {means['elastic']:.5f} "
                f"| {means['elastic'] - means['fixed']:+.5f} |"
            ),
            f"| standard deviation | {spread['fixed']:.5f} | {spread['elastic']:.5f} | |",
            "",
            "![AUC over versions, mean of the seeds](elastic-quality.svg)",
            "",
        ]
    )


def picture(found: dict[str, list[list[tuple[int, float]]]]) -> str:
    """Draw AUC over versions: a line each, the mean over the seeds at each evaluation."""
    width, height, left, bottom = 640, 320, 60, 40
    curves = {}
    for variant, runs in found.items():
        count = min(len(run) for run in runs)
        curves[variant] = [
            (
                statistics.mean(run[i][0] for run in runs),
                statistics.mean(run[i][1] for run in runs),
            )
            for i in range(count)
        ]
    points = [point for curve in curves.values() for point in curve]
    low, high = min(y for _, y in points) - 0.002, max(y for _, y in points) + 0.002
    last = max(x for x, _ in points)

    def place(x: float, y: float) -> str:
        across = left + (width - left - 20) * x / last
        down = height - bottom - (height - bottom - 20) * (y - low) / (high - low)
        return f"{across:.1f},{down:.1f}"

    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for i in range(5):
        y = low + (high - low) * i / 4
        x1, y1 = place(0, y).split(",")
        lines.append(f'<path d="M{x1},{y1}H{width - 20}" stroke="#dddddd"/>')
        lines.append(f'<text x="8" y="{float(y1) + 4:.1f}">{y:.4f}</text>')
        at = last * i / 4
        x0, y0 = place(at, low).split(",")
        lines.append(
            f'<text x="{x0}" y="{float(y0) + 18:.1f}" text-anchor="middle">{at:.0f}</text>'
        )
    lines.append(f'<text x="{width - 20}" y="{height - 6}" text-anchor="end">version</text>')
    for row, (variant, colour, dash) in enumerate(
        (("fixed", "#0072b2", "none"), ("elastic", "#d55e00", "6 3"))
    ):
        path = " ".join(place(x, y) for x, y in curves[variant])
        lines.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/>'
        )
        y = height - bottom - 40 + 16 * row
        lines.append(
            f'<path d="M{width - 190},{y - 4}h30" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/><text x="{width - 152}" y="{y}">{variant}: '
            f"{'2 workers' if variant == 'fixed' else '2 → 4 → 1 → 3'}</text>"
        )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    main()
