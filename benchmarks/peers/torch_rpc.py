"""torch.distributed.rpc (TensorPipe): a server process that holds the parameters, and a worker."""

from __future__ import annotations

import multiprocessing
import socket
import sys

from torch import Tensor
from torch.distributed import rpc

from benchmarks.peers import work as w
from benchmarks.peers.torch_model import Parameters, train

_parameters: Parameters


def pull(ids: Tensor) -> tuple[Tensor, Tensor]:
    return _parameters.pull(ids)


def push(ids: Tensor, grads: Tensor, dense: Tensor) -> None:
    _parameters.push(ids, grads, dense)


def main(file: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    server = spawn.Process(target=serve, args=(file, port), daemon=True)
    server.start()
    rpc.init_rpc("worker", rank=1, world_size=2, rpc_backend_options=options(port))
    train(
        w.load(file),
        lambda ids: rpc.rpc_sync("server", pull, args=(ids,)),
        lambda *gradients: rpc.rpc_async("server", push, args=gradients).wait,
    )
    rpc.shutdown()
    server.join()


def serve(file: str, port: int) -> None:
    global _parameters
    _parameters = Parameters(w.load(file))
    rpc.init_rpc("server", rank=0, world_size=2, rpc_backend_options=options(port))
    rpc.shutdown()  # once the worker is done


def options(port: int) -> rpc.TensorPipeRpcBackendOptions:
    return rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=4, init_method=f"tcp://127.0.0.1:{port}"
    )


if __name__ == "__main__":
    main(sys.argv[1])
