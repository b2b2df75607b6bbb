"""The dense chunks that this shard owns: values, optimizer state, and when each changed.

A chunk is a run of at most 1,048,576 elements of one tensor. A parameter's chunk is one row of the
optimizer's rule, with its own step count; a buffer's chunk only adds what is pushed to it.

Steps may run at the same time: each chunk has a lock, and a step takes the chunks that are free
first, so that two steps of the same tensors work on different chunks from their second one on.

Pins share: a pin holds the chunks' arrays themselves, and the next write to a chunk copies its
arrays first. So a pin costs nothing until chunks are written, and what has once been pinned is
never written again, not even when the pin is gone: whoever still reads it, reads the pin.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ...nn.model_spec import CHUNK_ELEMENTS, ModelSpec
from ..rows.optimizers import ChunkStep, Floats, Ints, Rules

ChunkKey = tuple[str, int]  # tensor, number


@dataclass
class Chunk:
    """A chunk's values and optimizer state, and when it changed.

    `value` and each of `state` are float32[n]; `steps` int64[1]; `changed` is a version.
    """

    value: Floats
    state: list[Floats]
    steps: Ints
    changed: int
    pinned: bool = field(default=False, repr=False)  # a pin may share the arrays: copy, then write

    def own(self) -> None:
        """Copy the arrays that a pin shares, for the first write since the pin."""
        state = [values.copy() for values in self.state]
        self.value, self.state, self.steps = self.value.copy(), state, self.steps.copy()
        self.pinned = False


class Dense:
    """The chunks of one shard by (tensor, number).

    `apply` may be called by any number of threads at the same time. The store's lock is held around
    all others, and no step is under way when one pins or inserts.
    """

    def __init__(self, spec: ModelSpec, rules: Rules) -> None:
        self._rules = rules
        for tensor in spec.dense:
            rules.of(tensor.name)  # its kernel is compiled
        self._specs = {tensor.name: tensor for tensor in spec.dense}
        self._buffers = {tensor.name for tensor in spec.dense if tensor.kind == "buffer"}
        self._chunks: dict[ChunkKey, Chunk] = {}
        self._locks: dict[ChunkKey, threading.Lock] = {}
        self._pins: dict[str, dict[ChunkKey, Chunk]] = {}
        self.moved = False  # since somebody set it back, a chunk's values have found another place

    def __len__(self) -> int:
        return len(self._chunks)

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._chunks

    @property
    def nbytes(self) -> int:
        """Return the memory of values and state, pins left out."""
        return sum(c.value.nbytes * (1 + len(c.state)) for c in self._chunks.values())

    def elements(self, key: ChunkKey) -> int:
        """Return how many elements the chunk must have."""
        tensor, number = key
        return min(CHUNK_ELEMENTS, self._specs[tensor].elements - number * CHUNK_ELEMENTS)

    def is_buffer(self, tensor: str) -> bool:
        return tensor in self._buffers

    def make(self, key: ChunkKey, value: Floats, version: int) -> None:
        """Make a fresh chunk with its first value; a chunk that is there is left alone."""
        if key in self._chunks:
            return
        constants = () if self.is_buffer(key[0]) else self._rules.of(key[0]).state.values()
        state = [np.full(len(value), constant, np.float32) for constant in constants]
        self.insert(key, Chunk(value.copy(), state, np.zeros(1, np.int64), version))

    def insert(self, key: ChunkKey, chunk: Chunk) -> None:
        """Insert a chunk from a snapshot."""
        self._chunks[key] = chunk
        self._locks[key] = threading.Lock()

    def apply(self, grads: Mapping[ChunkKey, Floats], lr: Callable[[str], float]) -> None:
        """Make one step: parameters by their rules, buffers by addition. `lr`: by tensor.

        `mark` them afterwards.
        """
        steps, by_rule = dict[str, ChunkStep](), dict[int, ChunkStep]()
        for tensor in {key[0] for key in grads}:
            rule = self._rules.of(tensor)
            if id(rule) not in by_rule:
                by_rule[id(rule)] = rule.of_chunks(lr(tensor))
            steps[tensor] = by_rule[id(rule)]
        left: Collection[ChunkKey] = grads
        wait = False
        while left:
            busy = []
            for key in left:
                lock = self._locks[key]
                if not lock.acquire(blocking=wait):
                    busy.append(key)
                    continue
                wait = False
                try:
                    self._step(key, grads[key], steps[key[0]])
                finally:
                    lock.release()
            wait = len(busy) == len(left)
            left = busy

    def mark(self, keys: Iterable[ChunkKey], version: int) -> None:
        """Mark these chunks as changed: whoever knows less than `version` lacks something."""
        for key in keys:
            self._chunks[key].changed = version

    def changed_since(self, version: int | None, cut: str = "") -> Iterator[tuple[ChunkKey, Chunk]]:
        """Yield the chunks changed after `version` (None: all), now or as `cut` was pinned."""
        chunks = self._pins[cut] if cut else self._chunks
        for key, chunk in chunks.items():
            if version is None or chunk.changed > version:
                yield key, chunk

    def pin(self, cut: str) -> None:
        for chunk in self._chunks.values():
            chunk.pinned = True
        self._pins[cut] = {key: dataclasses.replace(c) for key, c in self._chunks.items()}

    def unpin(self, cut: str) -> None:
        self._pins.pop(cut, None)

    def _step(self, key: ChunkKey, grad: Floats, step: ChunkStep) -> None:
        chunk = self._chunks[key]
        if chunk.pinned:
            chunk.own()
            self.moved = True  # only now
        if key[0] in self._buffers:
            chunk.value += grad
        else:
            step(chunk.value, chunk.state, chunk.steps, grad)
