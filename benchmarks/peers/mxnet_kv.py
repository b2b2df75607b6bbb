"""MXNet's kvstore "dist_async": SGD on the server, after each push. Scheduler, server, worker.

The wheel is of 2022: it needs the numpy of its time.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import traceback
from typing import Any

from benchmarks.peers import micro
from benchmarks.peers.work import answer


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "1",
    }
    # Importing it is what a server does: it serves until the worker is done.
    others = [
        subprocess.Popen(
            [sys.executable, "-c", "import mxnet"], env={**os.environ, "DMLC_ROLE": role}
        )
        for role in ("scheduler", "server")
    ]
    os.environ["DMLC_ROLE"] = "worker"
    failed = 0
    try:
        work()
    except BaseException:  # noqa: BLE001 - its own way out waits for the others
        traceback.print_exc()
        failed = 1
    for other in others:
        other.kill()
        other.wait()
    os._exit(failed)


def work() -> None:
    import mxnet

    store: Any = mxnet.kv.create("dist_async")
    store.set_optimizer(mxnet.optimizer.SGD(learning_rate=micro.LR))
    grads = [mxnet.nd.array(values) for values in micro.tensors().values()]
    values = [mxnet.nd.zeros_like(grad) for grad in grads]
    names = list(range(len(grads)))
    store.init(names, values)
    _check(store, grads[0], values[0])

    def cycles() -> None:
        for _ in range(micro.CYCLES):
            store.pull(names, out=values)
            mxnet.nd.waitall()
            store.push(names, grads)
        # Its pushes only start; an answered pull says that the last one has been applied.
        store.pull(names[-1:], out=values[-1:])
        mxnet.nd.waitall()

    answer(cycles, micro.CYCLES)


def _check(store: Any, grad: Any, value: Any) -> None:
    """Check that a push is a step of SGD.

    A pull overwrites the gradient pushed before.
    """
    expected = -micro.LR * grad.asnumpy()
    store.push(0, grad)
    store.pull(0, out=value)
    assert abs(value.asnumpy() - expected).max() < 1e-6


if __name__ == "__main__":
    main()
