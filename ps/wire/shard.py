"""The interface of pull and push of one shard, in plain arrays, which every carrier implements.

The carriers are the tensor plane (connection.py) and plain gRPC (grpc.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..books.ledger import Span

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
Chunk = tuple[str, int, Floats]  # tensor, number, at most CHUNK_ELEMENTS values
Reply = TypeVar("Reply")
Waiter = Callable[[], Reply]  # blocks until the reply is there; raises what `rpc.call` raises


@dataclass(frozen=True)
class ShardPull:
    """The part of a pull that is one shard's.

    `known_version` None: all chunks.

    `into(tensor, number)` is where that chunk's values are wanted: a carrier that can writes them
    there and hands out that array.
    """

    dense: bool
    known_version: int | None = None
    tables: Mapping[str, Ids] = field(default_factory=dict)
    cut: str = ""
    into: Callable[[str, int], Floats] | None = None


@dataclass(frozen=True)
class ShardPush:
    """The part of a push that is one shard's.

    `wire`: how the gradients travel (ps/wire/quantize.py). `then`: a pull of dense chunks whose
    answer comes with the reply, once the version is made that this push is part of. `nbytes`: of
    ids and gradients, before they are coded.
    """

    span: Span
    version: int
    dense: Sequence[Chunk] = ()
    tables: Mapping[str, tuple[Ids, Floats]] = field(default_factory=dict)
    wire: str = "float32"
    then: ShardPull | None = None
    nbytes: int = 0


@dataclass(slots=True)
class ShardPushed:
    """The answer of one shard to a push: `outcome` is a PushReply.Outcome of ps.proto.

    `pulled`: the pull that came with the push was answered; `version` is then that of `dense`.
    """

    outcome: int
    version: int
    applied: int
    dense: Sequence[Chunk] = ()
    pulled: bool = False


@dataclass(slots=True)
class ShardPulled:
    """The answer of one shard to a pull.

    `outcome` is a PullReply.Outcome of ps.proto; `tables` has rows[n, dim] in the ids' order.
    """

    outcome: int
    version: int
    dense: Sequence[Chunk] = ()
    tables: Mapping[str, Floats] = field(default_factory=dict)


class ShardConnection(Protocol):
    """Pull and push of one shard.

    Starting a call sends it; the waiter that it returns gathers.

    A waiter raises Unreachable where no reply came within `timeout_s`; the call may then have
    happened or not, and may be repeated.
    """

    def start_pull(self, pull: ShardPull, timeout_s: float) -> Waiter[ShardPulled]: ...

    def start_push(self, push: ShardPush, timeout_s: float) -> Waiter[ShardPushed]: ...

    def close(self) -> None: ...
