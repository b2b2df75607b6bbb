"""A consumer of a counting job's deltas: `python -m edl.chaos.consumer FOLDER OUT`.

It follows FOLDER as whoever serves the job's model does, makes a model of each generation, and
writes down in OUT what it has published (followed.py), until it is killed.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
import torch

from ..common import faults
from ..common import log as logs
from ..serve.deltas import Generation
from ..serve.follow import follow
from ..serve.live import LiveModels
from .followed import Published, publish

_PERIOD_S = 0.05


def published(generation: Generation, models: LiveModels) -> Published:
    """Return what a generation is made of, read as its rows and as a model."""
    blocks = list(generation.tables["counts"].blocks())
    ids = np.concatenate([ids for ids, _ in blocks])
    model = models.of(generation)
    seen = [float(values.item()) for name, values in model.named_parameters() if "seen" in name]
    features = {"record": torch.from_numpy(ids), "x": torch.zeros(len(ids), 3)}
    with torch.inference_mode():
        answers = model(features)[:, 0] - sum(seen)
    dense = {float(generation.dense[name][0]) for name in generation.dense if "seen" in name}
    about = generation.about
    return Published(
        *(about.job, about.cut, about.number, about.records),
        ids=ids.tolist(),
        counts=np.concatenate([rows for _, rows in blocks])[:, 0].tolist(),
        answers=answers.tolist(),
        seen=[*seen, *dense],
        reader=os.getpid(),
    )


def main(folder: str, out: str) -> None:
    """Follow a folder of deltas until the process is killed."""
    logs.configure(role="consumer", index=0)
    Path(out).mkdir(exist_ok=True)
    models, over = LiveModels(), threading.Event()
    faults.point("consumer.register")
    with follow(folder, lambda new: publish(Path(out), published(new, models)), period_s=_PERIOD_S):
        over.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
