"""A script's state as JSON and tensors, and back. No pickles.

A value is itself where JSON has it, else `{kind: content}`. Tensors stand beside the JSON by
number. Those that are sharded over the ranks (DTensors, as FSDP2 and tensor parallelism have them)
are named by their place in the state, `state.model.weight`, and so are the `_metadata` of a
module's state_dict(), its versions: an attribute that no reader needs to know of.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..common.errors import CheckpointError, UsageError

Tree = Any  # of JSON
Sharded = Any  # a DTensor: torch.distributed.tensor is imported by whoever has one
Like = Callable[[str, torch.Size], Sharded | None]  # how one of this place and shape is held

_FULL = (
    "take it from torch.distributed.checkpoint.state_dict.get_state_dict(model, optimizer, "
    "options=StateDictOptions(full_state_dict=True, cpu_offload=True)), which all ranks call"
)
_MOST_LEVELS = 100  # Python's parser of JSON takes some more
_DTYPES = frozenset(
    getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex64", "bool"),
        *("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    )
    if hasattr(torch, name)
)


@dataclass
class Packed:
    """The parts of a state that are no JSON; see above."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    sharded: dict[str, Sharded] = field(default_factory=dict)
    metadata: dict[str, Tree] = field(default_factory=dict)
    _holders: list[int] = field(default_factory=list)  # ids of what holds the value at hand

    def pack(self, value: Any, where: str) -> Tree:
        """Return JSON for a value. Raises UsageError, with its place, where it cannot be kept."""
        if hasattr(value, "state_dict"):
            value = value.state_dict()
        if isinstance(value, np.generic) and not isinstance(value, bool | int | float | str):
            value = value.item()
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, dict | list | tuple):
            return self._pack_container(value, where)
        if isinstance(value, torch.Tensor):
            return self._pack_tensor(value, where)
        if isinstance(value, np.ndarray):
            return self._pack_array(value, where)
        raise UsageError(
            f"{where} is a {type(value).__name__}, which cannot be saved: a state is of dicts, "
            "lists, tensors, arrays, numbers, strings, and things that have a state_dict()."
        )

    def _pack_container(self, value: Any, where: str) -> Tree:
        if id(value) in self._holders:
            raise UsageError(f"{where} is the {type(value).__name__} that holds it: leave it out.")
        if len(self._holders) == _MOST_LEVELS:
            raise UsageError(f"{where} is nested in more than {_MOST_LEVELS} others: flatten it.")
        self._holders.append(id(value))
        try:
            if not isinstance(value, dict):
                kind = "list" if isinstance(value, list) else "tuple"
                return {kind: [self.pack(each, f"{where}.{i}") for i, each in enumerate(value)]}
            if hasattr(value, "_metadata"):
                self.metadata[where] = self.pack(dict(value._metadata), f"{where}._metadata")
            pairs = value.items()
            return {"dict": [[_key(k, where), self.pack(v, f"{where}.{k}")] for k, v in pairs]}
        finally:
            self._holders.pop()

    def _pack_tensor(self, value: torch.Tensor, where: str) -> Tree:
        if is_sharded(value) and not _is_partial(value):
            self.sharded[where] = value.detach()
            return {"sharded": [where, list(value.shape), str(value.dtype).removeprefix("torch.")]}
        if why := _unfit(value):
            raise UsageError(f"{where} is {why}.")
        # Tied weights share memory: each is saved.
        return {"tensor": self._add(value.detach().cpu().contiguous().clone())}

    def _pack_array(self, value: np.ndarray[Any, Any], where: str) -> Tree:
        if value.dtype.kind == "U":
            return {"texts": [value.dtype.str, list(value.shape), value.ravel().tolist()]}
        # Not ascontiguousarray, which gives an array of no dimension one.
        native = np.array(value, dtype=value.dtype.newbyteorder("="), order="C")
        try:
            tensor = torch.from_numpy(native)
        except TypeError:
            tensor = None
        if tensor is None or tensor.dtype not in _DTYPES or isinstance(value, np.ma.MaskedArray):
            raise UsageError(
                f"{where} is a {type(value).__name__} of {value.dtype}, which cannot be saved: "
                "make it an array of numbers or texts, or a list (`.tolist()`)."
            )
        return {"array": self._add(tensor)}

    def _add(self, tensor: torch.Tensor) -> str:
        name = str(len(self.tensors))
        self.tensors[name] = tensor
        return name


@dataclass
class Unpacked:
    """The parts of a saved state beside its JSON, of which the state is made again (see `Packed`).

    `like`: the tensors of a state that says how this rank is to hold its part, by their places.
    """

    tensors: Mapping[str, torch.Tensor]
    sharded: Mapping[str, torch.Tensor]
    metadata: Mapping[str, Tree]
    like: Like

    def unpack(self, tree: Tree, where: str) -> Any:
        """Return a value from its JSON. Raises CheckpointError where `like` has another shape."""
        if not isinstance(tree, dict):
            return tree
        ((kind, content),) = tree.items()
        match kind:
            case "dict":
                return self._dict(content, where)
            case "list":
                return [self.unpack(each, f"{where}.{i}") for i, each in enumerate(content)]
            case "tuple":
                return tuple(self.unpack(each, f"{where}.{i}") for i, each in enumerate(content))
            case "array":
                return self.tensors[content].numpy()
            case "texts":
                dtype, shape, texts = content
                return np.array(texts, dtype=dtype).reshape(shape)
            case "sharded":
                return self.sharded[content[0]]
        value = self.tensors[content]
        like = self.like(where, value.shape)
        return value if like is None else _share_out(value, like)

    def _dict(self, content: Tree, where: str) -> dict[Any, Any]:
        found = {key: self.unpack(each, f"{where}.{key}") for key, each in content}
        if where not in self.metadata:
            return found
        ordered = OrderedDict(found)
        metadata = self.unpack(self.metadata[where], f"{where}._metadata")
        ordered._metadata = OrderedDict(metadata)  # type: ignore[attr-defined]
        return ordered


def sharded_in(tree: Tree) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return the shapes and dtypes of the sharded tensors of a state, by their places."""
    if not isinstance(tree, dict):
        return {}
    ((kind, content),) = tree.items()
    if kind == "sharded":
        where, shape, dtype = content
        return {where: (torch.Size(shape), getattr(torch, dtype))}
    parts = [each for _, each in content] if kind == "dict" else content
    if kind not in ("dict", "list", "tuple"):
        return {}
    return {where: about for each in parts for where, about in sharded_in(each).items()}


def is_sharded(value: object) -> bool:
    """Tell whether this is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")  # there is none before it is imported
    return module is not None and isinstance(value, module.DTensor)


def holds_sharded(value: Any) -> bool:
    """Tell whether a state holds a DTensor. Asks no module or optimizer for its state."""
    if "torch.distributed.tensor" not in sys.modules:
        return False
    if isinstance(value, torch.nn.Module):
        return any(map(is_sharded, [*value.parameters(), *value.buffers()]))
    if isinstance(value, torch.optim.Optimizer):
        return any(is_sharded(p) for group in value.param_groups for p in group["params"])
    if isinstance(value, dict):
        return any(map(holds_sharded, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_sharded, value))
    return holds_sharded(value.state_dict()) if hasattr(value, "state_dict") else is_sharded(value)


def likes(state: Any) -> Like:
    """Return a function that gives the DTensor of this state at a place, for one of that shape.

    What an optimizer will keep of a parameter is held as that is, before there is any. Raises
    CheckpointError where one of another shape is there.
    """
    found: dict[str, Sharded] = {}
    parameters: dict[str, Sharded] = {}

    def look(value: Any, where: str) -> None:
        if isinstance(value, torch.optim.Optimizer):
            all_parameters = [p for group in value.param_groups for p in group["params"]]
            for number, parameter in enumerate(all_parameters):
                if is_sharded(parameter):
                    parameters[f"{where}.state.{number}"] = parameter
        if hasattr(value, "state_dict"):
            value = value.state_dict()
        if isinstance(value, dict):
            for key, each in value.items():
                look(each, f"{where}.{key}")
        elif isinstance(value, list | tuple):
            for number, each in enumerate(value):
                look(each, f"{where}.{number}")
        elif is_sharded(value):
            found[where] = value

    def like(where: str, shape: torch.Size) -> Sharded | None:
        known = found.get(where)
        if known is not None and known.shape != shape:
            raise CheckpointError(
                f"{where} was saved with the shape {tuple(shape)} and is {tuple(known.shape)} "
                "here: load it into the model that it was saved of."
            )
        parameter = parameters.get(where.rpartition(".")[0])
        if known is None and parameter is not None and parameter.shape == shape:
            return parameter
        return known

    look(state, "state")
    return like


def _share_out(value: torch.Tensor, like: Sharded) -> Sharded:
    """Return this rank's part of a tensor that each rank has as a whole."""
    from torch.distributed.tensor import distribute_tensor

    whole = value.to(like.device)
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def _is_partial(value: Sharded) -> bool:
    return any(place.is_partial() for place in value.placements)


def _unfit(value: Any) -> str:
    """Return why a tensor cannot be saved, and what to save instead; "" where it can."""
    kind = type(value).__name__
    if torch.nn.parameter.is_lazy(value):
        return "not initialised yet: give the model a batch before it is saved"
    if is_sharded(value):
        return "a DTensor of sums that are not added up yet (Partial): redistribute() it before"
    if kind == "ShardedTensor":
        return f"a part of a tensor that is sharded over the ranks (FSDP1): {_FULL}"
    if value.is_quantized:
        return "a quantized tensor, which cannot be saved: save its dequantize(), or int_repr()"
    if value.is_nested:
        return "a nested tensor, which cannot be saved: save the list of its unbind()"
    if value.layout is not torch.strided:
        layout = str(value.layout).removeprefix("torch.")
        return f"a tensor of layout {layout}, which cannot be saved: save its to_dense()"
    if value.is_meta:
        return "on the device meta, which holds no values: give it some before it is saved"
    if torch.utils._python_dispatch.is_traceable_wrapper_subclass(value):
        return f"a {kind}, which is more than a tensor, and cannot be saved: save its parts"
    if value.dtype not in _DTYPES:
        return f"a tensor of {value.dtype}, which cannot be saved: save it as another dtype"
    return ""


def _key(key: object, where: str) -> Tree:
    if key is None or isinstance(key, bool | int | float | str):
        return key
    raise UsageError(f"{where} has the key {key!r}: keys are strings or numbers.")
