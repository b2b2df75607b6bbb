"""The device that the model is on: its choice, its seeds, and copies from the host and back.

On the CPU nothing is copied: tensors are views of arrays, and arrays of tensors. For CUDA the
arrays stand in pinned memory and the copies run on a stream of their own, all of a batch's
together, so that the host waits once and the device computes meanwhile.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..common.errors import UsageError
from .precision import Precision

Values = NDArray[np.float32]


class Link:
    """The way to a device and back.

    Results of one call stay valid after the next.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, values: Values) -> Tensor:
        """Return a tensor on the device; on the CPU it shares the array's memory."""
        if not values.flags.writeable:  # a view of a received message; torch wants its own
            values = values.copy()
        tensor = torch.from_numpy(values)
        if self._stream is None:
            return tensor.to(self.device)
        with torch.cuda.stream(self._stream):
            sent = tensor.pin_memory().to(self.device, non_blocking=True)
        present = torch.cuda.current_stream(self.device)
        present.wait_stream(self._stream)
        sent.record_stream(present)
        return sent

    def fetch(self, tensors: Sequence[Tensor]) -> list[Values]:
        """Return float32 arrays, C-contiguous; on the CPU they share a float32 tensor's memory."""
        sources = [tensor.detach().to(torch.float32).contiguous() for tensor in tensors]
        if self._stream is None:
            return [source.cpu().numpy() for source in sources]
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        fetched = []
        with torch.cuda.stream(self._stream):
            for source in sources:
                host = torch.empty(source.shape, dtype=torch.float32, pin_memory=True)
                fetched.append(host.copy_(source, non_blocking=True).numpy())
        self._stream.synchronize()
        return fetched


def choose_device(wanted: str, index: int) -> torch.device:
    """Return the torch device for --device of the worker of this index.

    The workers of a machine take its GPUs in turn. A pod sees its own alone. Raises UsageError for
    cuda where there is none.
    """
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise UsageError("--device cuda, but torch sees no CUDA device here: use --device auto")
    if not there or wanted == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", index % torch.cuda.device_count())
    torch.cuda.set_device(device)  # where torch's own calls without a device go
    return device


def gpu_of(device: torch.device) -> str:
    """Return what tells a GPU from all others; "" for the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def seed_of(*parts: int | str) -> int:
    """Return a seed that is a function of the parts alone, on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


def seed_step(number: int, device: torch.device) -> None:
    """Seed all that a step on this device draws from, as torch.manual_seed would.

    These are a generator or two (microseconds). torch.manual_seed would also queue the seed for
    devices that nobody has begun to use, each with its stack trace: half a millisecond and more.
    """
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)  # of the device that `choose_device` has set


@contextmanager
def others_seeded(number: int) -> Iterator[None]:
    """Seed numpy's and Python's global generators too, which go on afterwards as if they were not.

    Models draw first values by them. What feed draws must not be the same in each worker.
    """
    of_numpy, of_python = np.random.get_state(), random.getstate()
    np.random.seed(number % 2**32)
    random.seed(number)
    try:
        yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def to_device(values: Any, device: torch.device) -> Any:
    """Move tensors in dicts, lists and tuples, and what can move itself (a PackedSequence, say).

    Returns the same object where all of it is there already, so that it keeps its type.
    """
    if isinstance(values, Tensor):
        # To the host the copy must have ended: whoever reads there does not wait for the device.
        return values.to(device, non_blocking=device.type != "cpu")
    if isinstance(values, Mapping):
        moved = {key: to_device(value, device) for key, value in values.items()}
        return values if all(moved[key] is values[key] for key in moved) else moved
    if callable(move := getattr(values, "to", None)):
        return move(device)
    if isinstance(values, list | tuple):
        parts = [to_device(value, device) for value in values]
        if all(part is value for part, value in zip(parts, values, strict=True)):
            return values
        named = isinstance(values, tuple) and hasattr(values, "_fields")
        return type(values)(*parts) if named else type(values)(parts)
    return values


@torch.no_grad()
def outputs_of(model: nn.Module, features: Any, device: torch.device, numbers: Precision) -> Any:
    """Return the outputs in evaluation mode, on the CPU, of a model on `device`."""
    model.eval()
    outputs = numbers.of(model)(to_device(features, device))
    return to_device(outputs, torch.device("cpu"))


def values_of(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the model's parameters and buffers by name, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
