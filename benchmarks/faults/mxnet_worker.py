"""A worker of MXNet's dist_async; runs in MXNet's environment.

    python -m benchmarks.faults.mxnet_worker WORKERS POSITION_FILE

MXNet has no queue of records: each worker takes its share, as with its iterators' `part_index`.
Key k holds the counts of the records of block k; the servers share the keys. A step is a pull, a
push of a one-hot gradient, and a pull that says that the push is applied. Told "read", it reads all
keys, each on its own, as far as they can be had.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.faults import events

_READ_S = 20.0


def main(workers: int, position: Path) -> None:
    import mxnet

    store: Any = mxnet.kv.create("dist_async")
    store.set_optimizer(mxnet.optimizer.SGD(learning_rate=1.0))
    keys = range(events.RECORDS // events.TASK)
    zeros = mxnet.nd.zeros(events.TASK)
    store.init(list(keys), [zeros] * len(keys))
    events.say("ready", rank=store.rank)
    threading.Thread(target=_commands, args=(mxnet, store, keys), daemon=True).start()
    done = int(position.read_text()) if position.exists() else 0
    for key in keys[store.rank :: workers]:
        for first, end in events.batches(key * events.TASK, (key + 1) * events.TASK):
            if end <= done:
                continue
            weights = mxnet.nd.zeros(events.TASK)
            store.pull(key, out=weights)
            weights.wait_to_read()
            time.sleep(events.DELAY_S)
            gradient = mxnet.nd.zeros(events.TASK)
            gradient[first % events.TASK : first % events.TASK + end - first] = -1
            store.push(key, gradient)
            store.pull(key, out=weights)
            weights.wait_to_read()
            position.with_suffix(".new").write_text(str(end))
            os.replace(position.with_suffix(".new"), position)
            events.say("step", first=first, end=end)
    events.say("done")
    threading.Event().wait()


def _commands(mxnet: Any, store: Any, keys: range) -> None:
    while events.hear() == "read":
        found: dict[int, list[float]] = {}

        def read(key: int, found: dict[int, list[float]] = found) -> None:
            counts = mxnet.nd.zeros(events.TASK)
            store.pull(key, out=counts)
            found[key] = counts.asnumpy().tolist()

        readers = [threading.Thread(target=read, args=(key,), daemon=True) for key in keys]
        give_up = time.monotonic() + _READ_S
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0.0, give_up - time.monotonic()))
        events.say("counts", keys=list(found.items()))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
