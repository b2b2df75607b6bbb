"""A process that follows the deltas of a counting job: `follower.py FOLDER OUT`.

For each generation it appends a line to OUT: cut number, records by the manifest, by the rows and
by the dense `total`, and by a model made of it.
"""

from __future__ import annotations

import sys
import threading

import torch

from edl.serve.deltas import Generation
from edl.serve.follow import follow
from edl.serve.live import LiveModels
from tools.jobs import ZOO


def main(folder: str, out: str) -> None:
    models, over = LiveModels("counting", model_zoo=str(ZOO)), threading.Event()

    def take(generation: Generation) -> None:
        model = models.of(generation)
        counts = generation.tables["counts"]
        ids = torch.cat([torch.from_numpy(ids) for ids, _ in counts.blocks()])
        rows = sum(float(rows.sum()) for _, rows in counts.blocks())
        with torch.inference_mode():
            total = model.get_parameter("total")
            outputs = model({"record": ids}) - total
        numbers = generation.about.number, generation.about.records, rows
        more = float(generation.dense["total"][0]), float(outputs.sum()), float(total)
        with open(out, "a") as file:
            print(*numbers, *more, file=file, flush=True)

    with follow(folder, take, period_s=0.05):
        over.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
