"""The interfaces between a connection of the tensor plane and its server: store, counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...nn.model_spec import ModelSpec
from ..books.aggregation import Update
from ..books.answers import PullPlan, Pushed
from ..books.ledger import Span
from ..books.slots import SlotMap
from ..books.view import StoreView
from .board import Board
from .buffers import Buffers
from .turns import Turns


class Backend(Protocol):
    """A store, as the plane asks it."""

    @property
    def slot_map(self) -> SlotMap: ...

    @property
    def spec(self) -> ModelSpec | None: ...

    @property
    def initialized(self) -> bool: ...

    def watch(self, make: Callable[[StoreView], Board]) -> Board | None: ...

    def plan_pull(
        self,
        *,
        dense: bool,
        known_version: int | None,
        tables: Iterable[tuple[str, NDArray[np.int64]]],
        cut: str = "",
    ) -> PullPlan | None: ...

    def check_rows(self, table: str, ids: NDArray[np.int64], dim: int) -> None: ...

    def push(
        self,
        span: Span,
        version: int,
        update: Update,
        *,
        checked: bool = False,
        before_wait: Callable[[], None] = ...,
    ) -> Pushed: ...

    def lets_through(self, span: Span) -> bool: ...

    def wait_version(self, newer_than: int, timeout_s: float) -> int: ...


class Calls(Protocol):
    """A counter of the calls that are served."""

    def observe(self, method: str, code: str, seconds: float, nbytes: int = 0) -> None: ...

    def pushed(self, pushed: Pushed) -> None: ...

    def begin_compiled(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the bounds of the buckets in ns, and a connection's counters.

        They are in use until `end_compiled`.
        """
        ...

    def end_compiled(self, counters: NDArray[np.int64]) -> None: ...


@dataclass(frozen=True)
class Serving:
    """The things that all connections of one server share.

    `backend()` None: the server is starting. `buffers` are those of pushes, `parts` of replies.
    """

    backend: Callable[[], Backend | None]
    index: int
    calls: Calls
    turns: Turns
    buffers: Buffers
    parts: Buffers
