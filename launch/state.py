"""A script's state between rounds: saved and loaded by two calls, whatever the world.

A state is nested dicts, lists and tuples of tensors, numpy arrays, numbers, strings and None
(values.py); whatever has `state_dict()` stands for what that gives. On disk it is a checkpoint as
all of edl's (common/storage.py: versioned, atomic, checksummed), with the tensors in safetensors
and the rest as JSON, never a pickle. Rank 0 writes it; tensors that are sharded over the ranks are
written by all of them (shards.py), and rank 0 writes the manifest when all have.

The version of a checkpoint begins with the number of the round that wrote it. So what a writer that
was cut off still writes sorts behind nothing that its successors have written, and the round that
reads reads one version, on which all its ranks agree (launch/handler.py).
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ..common import claims, storage
from ..common.errors import CheckpointError, EdlError, UsageError
from ..common.files import FileRecord
from ..common.places import Place, Where
from . import world

if TYPE_CHECKING:
    from .values import Packed, Tree

log = logging.getLogger(__name__)

DRAINED = 75  # exit code of a script that has saved and makes room for the next round (EX_TEMPFAIL)
_PER_ROUND = 10**9  # versions of a round
_TENSORS, _TREE = "state.safetensors", "state.json"


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
    Where the state holds tensors that are sharded over the ranks (FSDP2, tensor parallelism), all
    ranks call this together, and each writes its parts.

    Raises UsageError, with the place in the state, where that holds what cannot be saved, or no
    folder was named; CheckpointError on all ranks where one could not write its parts.
    """
    folder = _folder()
    if world.rank() != 0 and "torch.distributed.tensor" not in sys.modules:
        return
    from .values import Packed, holds_sharded

    if world.rank() != 0 and not holds_sharded([state, progress]):
        return
    packed = Packed()
    told = {**progress, "world_size": world.world_size()}
    tree = {"state": packed.pack(state, "state"), "progress": packed.pack(told, "progress")}
    if packed.metadata:
        tree["metadata"] = packed.metadata
    if packed.sharded:
        _save_together(folder, packed, tree)
    elif world.rank() == 0:
        version = _next_version(folder)
        _finish(folder, storage.free_directory(folder, version), version, packed, tree, [])


def _save_together(folder: Place, packed: Packed, tree: dict[str, Tree]) -> None:
    from . import shards
    from .together import ranks

    peers = ranks()
    version, directory = 0, folder
    problem: str | None = None
    if peers.rank == 0:
        try:
            version = _next_version(folder)
            directory = storage.free_directory(folder, version)
            directory.remove_all()  # parts of an attempt that was given up
            directory.make()
        except OSError as error:
            problem = f"cannot save to {folder}: {error}"
    problem, name = peers.broadcast((problem, directory.name))
    if problem:
        raise CheckpointError(problem)
    directory = folder / name
    records, parts = shards.write(directory, packed.sharded, peers.group)
    written = peers.gather(([list(dataclasses.astuple(record)) for record in records], parts))
    if peers.rank == 0:
        files = [FileRecord(*each) for own, _ in written for each in own]
        tree["parts"] = {name: parts for _, own in written for name, parts in own.items()}
        try:
            _finish(folder, directory, version, packed, tree, files)
        except (OSError, EdlError) as error:
            problem = f"cannot save to {folder}: {error}"
    if problem := peers.broadcast(problem):
        raise CheckpointError(problem)


def _finish(
    folder: Place,
    directory: Place,
    version: int,
    packed: Packed,
    tree: dict[str, Tree],
    files: Sequence[FileRecord],
) -> None:
    """Write what rank 0 writes, the manifest last."""
    from safetensors.torch import save as to_bytes

    own = [
        directory.write(_TENSORS, to_bytes(packed.tensors)),
        directory.write(_TREE, json.dumps(tree).encode()),
    ]
    storage.write_manifest(
        directory, version=version, num_shards=1, num_slots=0, files=[*own, *files], model={}
    )
    storage.prune(folder, int(os.environ.get("EDL_CHECKPOINT_KEEP") or 3))


def load(like: dict[Any, Any] | None = None) -> Saved:
    """Return what was saved last, the same on every rank of the round.

    `like`: a state as it is saved, whose sharded tensors tell which parts of those that were saved
    this rank is to hold, and on which device; without it each rank gets them as a whole. It may
    have other ranks, or be sharded otherwise, than what was saved. Nothing of it is changed.

    Raises CheckpointError where this machine does not see what rank 0's does, or where a tensor of
    `like` has another shape; UsageError where no folder was named.
    """
    folder = _folder()
    pinned = os.environ.get("EDL_CHECKPOINT_VERSION")
    version = int(pinned) if pinned is not None else newest_whole(folder)
    if version == 0:
        return _nothing()
    directory = _of_version(folder, version)
    try:
        manifest = storage.read_manifest(directory, checksums=False)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}. Rank 0 has found that checkpoint: is --checkpoint_dir the same place on all "
            "machines?"
        ) from error
    records = {record.name: record for record in manifest.files}
    tensors, text = (storage.read_checked(manifest, records[name]) for name in (_TENSORS, _TREE))
    from safetensors.torch import load as from_bytes

    from . import shards, values

    tree = json.loads(text)
    held = values.likes(like)
    both = {"list": [tree["state"], tree["progress"]]}
    parts = shards.read(manifest, tree.get("parts", {}), values.sharded_in(both), held)
    found = values.Unpacked(from_bytes(tensors), parts, tree.get("metadata", {}), held)
    return Saved(found.unpack(tree["state"], "state"), found.unpack(tree["progress"], "progress"))


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
    """Return the version of the newest checkpoint that is whole; 0: none.

    At a store only sizes are compared: an object is whole, and whoever loads it compares the rest.
    """
    place = Place(checkpoint_dir)
    found = storage.newest_whole(storage.find_checkpoints(place), checksums=place.is_local)
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


def _nothing() -> Saved:
    """Return what stands for no state; say so where that is not the first round."""
    restarts = int(os.environ.get("EDL_NUM_RESTARTS") or 0)
    if restarts and world.rank() == 0:
        log.warning(
            "nothing was saved before restart %d of this job in %s: the script begins anew. Call "
            "edl.launch.save() more often than nodes come and go",
            restarts,
            _folder(),
        )
    return Saved({}, {})


def is_empty(checkpoint_dir: str) -> bool | None:
    """Tell whether nothing at all was saved there; None where that is not known from here."""
    place = Place(checkpoint_dir)
    if not place.is_local:
        return None
    try:
        found = {*os.listdir(place.path)} - {claims.FILE}
        return all(name.startswith(".") for name in found)
    except FileNotFoundError:
        return True if place.path.parent.is_dir() else None  # of a volume that is not mounted here
    except OSError:  # of no matter: it is told for people
        return None
