"""FastAPI around a model, as people write it by hand, for benchmarks/serving.py.

    python -m benchmarks.serving_peers CHECKPOINT --peers FOLDER --kind function|coroutine

A `function` is run in a pool of threads, a `coroutine` in the loop: the one answers others
meanwhile, the other has no change of threads. `edl.load`, the definition's feed and torch are the
same as those behind `edl serve`, on as many threads; there is no batching and no check but
pydantic's.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from typing import Any

import numpy as np
import torch

import edl
from edl.model_zoo import deepfm


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--peers", required=True)
    parser.add_argument("--kind", choices=["function", "coroutine"], required=True)
    arguments = parser.parse_args()
    sys.path.append(arguments.peers)
    import uvicorn
    from fastapi import FastAPI
    from pydantic import create_model

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
    model = edl.load(arguments.checkpoint)
    columns: dict[str, Any] = dict.fromkeys(deepfm.COLUMNS, (list[int], ...))
    Flights = create_model("Flights", **columns)
    app = FastAPI()

    def predict(flights: Any) -> dict[str, list[float]]:
        records = {name: np.array(getattr(flights, name)) for name in deepfm.COLUMNS}
        features, _ = deepfm.feed(records, "predict")
        with torch.inference_mode():
            return {"output": model(features).tolist()}

    def function(flights: Any) -> dict[str, list[float]]:
        return predict(flights)

    async def coroutine(flights: Any) -> dict[str, list[float]]:
        return predict(flights)

    endpoint = function if arguments.kind == "function" else coroutine
    endpoint.__annotations__["flights"] = Flights  # as if it were written there
    app.post("/predict")(endpoint)
    sock = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"ready at {sock.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning")).run([sock])


if __name__ == "__main__":
    main()
