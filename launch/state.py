"""A script's state between rounds: saved and loaded by two calls, whatever the world.

A state is nested dicts, lists and tuples of tensors, numpy arrays, numbers, strings and None;
whatever has `state_dict()` stands for what that gives. On disk it is a checkpoint as all of edl's
(common/storage.py: versioned, atomic, checksummed), with the tensors in safetensors and the rest as
JSON, never a pickle.

The version of a checkpoint begins with the number of the round that wrote it. So what a writer that
was cut off still writes sorts behind nothing that its successors have written, and the round that
reads reads one version, on which all its ranks agree (launch/handler.py).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ..common import storage
from ..common.errors import CheckpointError, UsageError
from ..common.places import Place, Where
from . import world

if TYPE_CHECKING:
    import torch

DRAINED = 75  # exit code of a script that has saved and makes room for the next round (EX_TEMPFAIL)
_PER_ROUND = 10**9  # versions of a round
_TENSORS, _TREE = "state.safetensors", "state.json"

Tree = Any  # of JSON


class Saved(NamedTuple):
    """A state that a script has saved; empty where nothing was saved yet.

    `state` is as it was given to `save`, with tensors on the CPU; `progress`: the rest, and
    `world_size`, that of the round that wrote it.
    """

    state: dict[Any, Any]
    progress: dict[str, Any]


def save(state: dict[Any, Any], **progress: Any) -> None:
    """Save a state and its progress, so that the next round goes on from here.

    Only rank 0 writes; on others it returns at once. What is there when this returns is on disk.

    Raises UsageError where the state holds what cannot be saved, or no folder was named.
    """
    folder = _folder()
    if world.rank() != 0:
        return
    version = _next_version(folder)
    tensors: dict[str, torch.Tensor] = {}
    told = {**progress, "world_size": world.world_size()}
    tree = {"state": _pack(state, tensors, "state"), "progress": _pack(told, tensors, "progress")}
    from safetensors.torch import save as to_bytes

    directory = storage.free_directory(folder, version)
    files = [
        directory.write(_TENSORS, to_bytes(tensors)),
        directory.write(_TREE, json.dumps(tree).encode()),
    ]
    storage.write_manifest(
        directory, version=version, num_shards=1, num_slots=0, files=files, model={}
    )
    storage.prune(folder, int(os.environ.get("EDL_CHECKPOINT_KEEP") or 3))


def load() -> Saved:
    """Return what was saved last, the same on every rank of the round.

    Raises CheckpointError where this machine does not see what rank 0's does, UsageError where no
    folder was named.
    """
    folder = _folder()
    pinned = os.environ.get("EDL_CHECKPOINT_VERSION")
    version = int(pinned) if pinned is not None else newest_whole(folder)
    if version == 0:
        return Saved({}, {})
    directory = _of_version(folder, version)
    try:
        manifest = storage.read_manifest(directory, checksums=False)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}. Rank 0 has found that checkpoint: is --checkpoint_dir the same place on all "
            "machines?"
        ) from error
    data = {record.name: storage.read_checked(manifest, record) for record in manifest.files}
    from safetensors.torch import load as from_bytes

    tensors = from_bytes(data[_TENSORS])
    tree = json.loads(data[_TREE])
    return Saved(_unpack(tree["state"], tensors), _unpack(tree["progress"], tensors))


def drain(state: dict[Any, Any], *, every: int = 1, **progress: Any) -> None:
    """Make room for a change that is planned, with nothing lost.

    All ranks call this after each step.

    Where any worker was told to stop (SIGTERM), all save here, after the same step, and end with
    DRAINED; else this returns. The ranks agree by a small all-reduce, in every `every`th call.
    """
    global _calls
    _listen()
    _calls += 1
    if _calls % every == 0 and _any_asked():
        save(state, **progress)
        leave()


def leave() -> NoReturn:
    """End this process to make room for the next round. Call it when all ranks have saved."""
    sys.stdout.flush()
    sys.exit(DRAINED)


_calls = 0
_asked = False
_listening = False


def _listen() -> None:
    global _listening
    if not _listening:
        signal.signal(signal.SIGTERM, _ask)
        _listening = True


def _ask(_number: int, _frame: FrameType | None) -> None:
    global _asked
    _asked = True


def _any_asked() -> bool:
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return _asked
    on = "cuda" if dist.get_backend() == "nccl" else "cpu"
    flag = torch.tensor([int(_asked)], device=on)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())


# -- versions


def newest_round(checkpoint_dir: Where) -> int:
    """Return the newest round that has written a checkpoint there, whole or not; 0: none."""
    found = storage.find_checkpoints(checkpoint_dir)
    return _version_of(found[-1]) // _PER_ROUND if found else 0


def newest_whole(checkpoint_dir: Where) -> int:
    """Return the version of the newest checkpoint that is whole; 0: none."""
    found = storage.latest(checkpoint_dir)
    return found.version if found else 0


def _next_version(folder: Place) -> int:
    round = int(os.environ.get("EDL_ROUND") or 0)
    found = storage.find_checkpoints(folder)
    newest = _version_of(found[-1]) if found else 0
    # Without a round, nobody launched this: after whatever is there.
    first = round * _PER_ROUND if round else newest
    own = [v for v in map(_version_of, found) if first <= v < first + _PER_ROUND]
    return max([first, *own]) + 1


def _of_version(folder: Place, version: int) -> Place:
    first = folder / storage.version_directory("", version).name
    if folder.is_local or first.has(storage.MANIFEST):
        return first
    # At a store nothing is written where an attempt was given up.
    return next((p for p in storage.find_checkpoints(folder) if _version_of(p) == version), first)


def _version_of(directory: Place) -> int:
    return int(directory.name.removeprefix("version-").partition(".")[0])


def _folder() -> Place:
    path = os.environ.get("EDL_CHECKPOINT_PATH")
    if not path:
        raise UsageError(
            "There is no place for the state: start the script by `edl launch`, or set "
            "EDL_CHECKPOINT_PATH to a folder."
        )
    return Place(path)


# -- values


def _pack(value: Any, tensors: dict[str, torch.Tensor], where: str) -> Tree:
    """Return JSON for a value; its tensors go into `tensors`."""
    import numpy as np
    import torch

    if hasattr(value, "state_dict"):
        value = value.state_dict()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {
            "dict": [[_key(k, where), _pack(v, tensors, f"{where}.{k}")] for k, v in value.items()]
        }
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_pack(each, tensors, f"{where}.{i}") for i, each in enumerate(value)]}
    if isinstance(value, np.generic):
        return _pack(value.item(), tensors, where)
    if isinstance(value, torch.Tensor | np.ndarray):
        kind = "tensor"
        if isinstance(value, np.ndarray):
            kind, value = "array", torch.from_numpy(np.ascontiguousarray(value))
        name = str(len(tensors))
        # Tied weights share memory: each is saved.
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {kind: name}
    raise UsageError(
        f"{where} is a {type(value).__name__}, which cannot be saved: a state is of dicts, lists, "
        "tensors, arrays, numbers, strings, and things that have a state_dict()."
    )


def _key(key: object, where: str) -> Tree:
    if key is None or isinstance(key, bool | int | float | str):
        return key
    raise UsageError(f"{where} has the key {key!r}: keys are strings or numbers.")


def _unpack(tree: Tree, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "dict":
        return {key: _unpack(each, tensors) for key, each in content}
    if kind == "list":
        return [_unpack(each, tensors) for each in content]
    if kind == "tuple":
        return tuple(_unpack(each, tensors) for each in content)
    return tensors[content] if kind == "tensor" else tensors[content].numpy()
