"""Ray, by the pattern of its documentation: an actor holds the parameters, a worker asks it."""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
import numpy as np  # Ray reads the line above
import ray
import torch

from benchmarks.peers import work as w
from benchmarks.peers.torch_model import Parameters, train


@ray.remote(num_cpus=1)
class Server:
    """A server. Arrays cross as numpy: Ray shares those without copies, and pickles tensors."""

    def __init__(self, file: str) -> None:
        self._parameters = Parameters(w.load(file))

    def pull(self, ids: w.Ids) -> tuple[w.Floats, w.Floats]:
        rows, dense = self._parameters.pull(_tensor(ids))
        return rows.numpy(), dense.numpy()

    def push(self, *gradients: np.ndarray[Any, Any]) -> None:
        self._parameters.push(*map(_tensor, gradients))


def main(file: str) -> None:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=1 << 30,
        _node_ip_address="127.0.0.1",
    )
    server = Server.remote(file)

    def pull(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, dense = ray.get(server.pull.remote(ids.numpy()))
        return _tensor(rows), _tensor(dense)

    def push(*gradients: torch.Tensor) -> Any:
        sent = server.push.remote(*(g.numpy() for g in gradients))
        return lambda: ray.get(sent)

    train(w.load(file), pull, push)
    ray.shutdown()


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Copy into a tensor of its own: what Ray hands out is read-only."""
    return torch.from_numpy(array.copy())


if __name__ == "__main__":
    main(sys.argv[1])
