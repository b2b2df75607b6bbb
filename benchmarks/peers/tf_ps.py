"""TensorFlow's ParameterServerStrategy: a coordinator, a worker and a server, three processes.

Variables and Adagrad live on the server. Ids are made unique before the rows are gathered, so that
a row crosses once. Steps are scheduled in bursts, as the coordinator is meant to be used.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import tensorflow as tf  # it reads the lines above

from benchmarks.peers import work as w

BURST = 10
assert w.WARM_UP % BURST == 0


def main(file: str) -> None:
    work = w.load(file)
    cluster = {role: [f"127.0.0.1:{_free_port()}"] for role in ("chief", "worker", "ps")}
    spawn = multiprocessing.get_context("spawn")
    nodes = [
        spawn.Process(target=serve, args=(cluster, role), daemon=True) for role in ("worker", "ps")
    ]
    for node in nodes:
        node.start()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    strategy = tf.distribute.ParameterServerStrategy(_resolver(cluster, "chief"))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    step = _make_step(strategy, work)

    def batches() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((work.ids, work.x, work.y)).prefetch(2)

    batch = iter(coordinator.create_per_worker_dataset(batches))
    meter, losses = w.Meter(work.steps), []
    for _ in range(0, work.steps, BURST):
        losses += [coordinator.schedule(step, args=(batch,)) for _ in range(BURST)]
        coordinator.join()
        meter.step(BURST)
    meter.report([float(loss.fetch()) for loss in losses[-w.LAST :]])
    for node in nodes:
        node.kill()
        node.join()
    sys.stdout.flush()
    os._exit(0)  # the coordinator's threads wait for the nodes


def serve(cluster: dict[str, list[str]], role: str) -> None:
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=2
    )
    spec = _resolver(cluster, role).cluster_spec()
    tf.distribute.Server(spec, job_name=role, task_index=0, protocol="grpc", config=config).join()


def _resolver(cluster: dict[str, list[str]], role: str) -> Any:
    task = {"type": role, "index": 0}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    return tf.distribute.cluster_resolver.TFConfigClusterResolver()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _make_step(strategy: Any, work: w.Work) -> Any:
    shape = [w.ROWS, w.DIM]
    with strategy.scope():
        rows = tf.Variable(
            lambda: tf.random.uniform(shape, -w.SCALE, w.SCALE, seed=0),
            shape=shape,
            dtype=tf.float32,
        )
        squares = tf.Variable(lambda: tf.fill(shape, w.ACCUMULATOR), shape=shape, dtype=tf.float32)
        dense = {name: tf.Variable(values) for name, values in work.dense.items()}
        dense_squares = {k: tf.Variable(tf.fill(v.shape, w.ACCUMULATOR)) for k, v in dense.items()}

    @tf.function
    def step(batches: Any) -> Any:
        ids, x, y = next(batches)
        unique, inverse = tf.unique(tf.reshape(ids, [-1]))
        with tf.GradientTape() as tape:
            rows_UD = tf.nn.embedding_lookup(rows, unique)
            values = {name: tf.convert_to_tensor(variable) for name, variable in dense.items()}
            tape.watch([rows_UD, *values.values()])
            rows_BFD = tf.reshape(tf.gather(rows_UD, inverse), [-1, w.FIELDS, w.DIM])
            outputs = _forward(rows_BFD, x, values)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, outputs))
        of_rows, *of_dense = tape.gradient(loss, [rows_UD, *values.values()])
        summed = tf.math.unsorted_segment_sum(of_rows.values, of_rows.indices, tf.size(unique))
        with tf.device(rows.device):
            tf.raw_ops.ResourceSparseApplyAdagrad(
                var=rows.handle, accum=squares.handle, lr=w.LR, grad=summed, indices=unique
            )
        for name, grad in zip(dense, of_dense, strict=True):
            with tf.device(dense[name].device):
                tf.raw_ops.ResourceApplyAdagrad(
                    var=dense[name].handle, accum=dense_squares[name].handle, lr=w.LR, grad=grad
                )
        return loss

    return step


def _forward(rows_BFD: Any, x: Any, dense: dict[str, Any]) -> Any:
    def layer(name: str, inputs: Any) -> Any:
        product = tf.linalg.matmul(inputs, dense[f"{name}.weight"], transpose_b=True)
        return product + dense[f"{name}.bias"]

    hidden = tf.concat([x, tf.reshape(rows_BFD, [-1, w.FIELDS * w.DIM])], 1)
    hidden = tf.nn.relu(layer("mlp.2", tf.nn.relu(layer("mlp.0", hidden))))
    total = tf.reduce_sum(rows_BFD, 1)
    pairs = tf.reduce_sum(total * total - tf.reduce_sum(rows_BFD * rows_BFD, 1), 1) / 2
    deep = layer("mlp.4", hidden) + layer("linear", x)
    return tf.squeeze(deep, 1) + pairs + tf.reduce_sum(rows_BFD[:, :, 0], 1)


if __name__ == "__main__":
    main(sys.argv[1])
