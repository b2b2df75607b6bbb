"""The arguments with which a definition's functions are called, by the functions' names."""

from __future__ import annotations

SIGNATURES = {
    "model": "def model(**params) -> nn.Module",
    "loss": "def loss(outputs, labels) -> Tensor",
    "optimizer": "def optimizer(**params) -> edl.nn.Adam(...), SGD(...), ...",
    "feed": "def feed(records, mode) -> (features, labels), or (features, labels, weight)",
    "metrics": "def metrics() -> dict[str, Metric]",
    "reader": "def reader(path, **params) -> RecordReader",
    "Callbacks": "class Callbacks, made without arguments",
    "process_predictions": "def process_predictions(outputs, worker)",
    "batch_rule": "def batch_rule(workers, wanted, minibatch_size) -> (minibatch, factor)",
    "shard_plan": "def shard_plan(model) -> [nn.Module, ...]",
    "teacher": "def teacher(**params) -> nn.Module",
    "teach": "def teach(model, features) -> Tensor, or a dict of such",
    "raw_keys": "def raw_keys() -> {table: column, or (column, field of hash64 or a function)}",
}
# Positional arguments that each function is called with; model and optimizer get theirs by name.
ARGUMENTS = {
    "loss": ("outputs", "labels"),
    "feed": ("records", "mode"),
    "metrics": (),
    "reader": ("path",),
    "Callbacks": (),
    "process_predictions": ("outputs", "worker"),
    "batch_rule": ("workers", "wanted", "minibatch_size"),
    "shard_plan": ("model",),
    "teach": ("model", "features"),
    "raw_keys": (),
}
