"""The changes of a shard since each of several states: the one reader of the tables' marks.

A table has one pair of marks (ps/rows/table.py), and takes them away as they are read. Recovery
snapshots and deltas (delta.py) both want to know what has changed, each since another state. So
both ask here: whoever looks, what is found is noted for all states that somebody holds on to.

A state begins at a pin. Of a pin with a mark, a moment's, everything that is written afterwards is
found by the next look. A cut is pinned without one, beside all other shards; a look while it is
still pinned notes what was written between: it is what the pin has kept.

More than what has changed may be named: values are read from a pin, so that is a row too many and
no wrong one. Nothing that has changed is ever left out; where that is not sure, the states are
forgotten, and whoever held on to one begins anew.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..books.pins import Moment
from ..books.state import ShardBooks
from ..books.store import Store
from ..rows.optimizers import Ints
from ..rows.table import Table

_LOOK = "look for changes"  # the pin
_NO_ROWS = np.empty(0, np.int64)


@dataclass
class Since:
    """A state, and which rows have been written since it, as far as somebody has looked."""

    life: int  # of the parameters: in another one rows have other numbers
    version: int
    sizes: Mapping[str, int]  # rows that it has; those after them are new
    owed: dict[str, Ints] = field(default_factory=dict)  # numbers of rows, ascending

    def rows(self, table: str, size: int) -> Ints:
        """Return the numbers, below `size`, of the rows that are not as they were, ascending."""
        known = min(self.sizes.get(table, 0), size)
        owed = self.owed.get(table, _NO_ROWS)
        return np.concatenate([owed[: np.searchsorted(owed, known)], np.arange(known, size)])

    def note(self, table: str, touched: Ints) -> None:
        """Add rows that have been written, ascending."""
        owed = self.owed.get(table, _NO_ROWS)
        if not len(owed) or not len(touched):
            self.owed[table] = touched if len(touched) else owed
            return
        is_owed = np.zeros(max(int(owed[-1]), int(touched[-1])) + 1, np.bool_)
        is_owed[owed] = True
        is_owed[touched] = True
        self.owed[table] = np.flatnonzero(is_owed)


class Changes:
    """The states of one shard that somebody holds on to, by name. Any thread may call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looking = threading.Lock()  # from a pin with a mark until its marks are read
        self._since: dict[str, Since] = {}

    def since(self, state: str, life: int) -> Since | None:
        """Return a state; None where it is not known, or is one of other parameters."""
        found = self._since.get(state)
        return found if found is not None and found.life == life else None

    def forget(self, state: str) -> None:
        with self._looking:
            self._since.pop(state, None)

    def keep_only(self, prefix: str, kept: tuple[str, ...]) -> None:
        """Forget all states whose names begin so, but for these."""
        with self._looking:
            for state in [s for s in self._since if s.startswith(prefix) and s not in kept]:
                del self._since[state]

    def moment(self, pin: str, state: str, unless: ShardBooks | None = None) -> Moment | None:
        """Pin the shard as it is, and hold on to that state.

        None: there is nothing yet, or the books are as in `unless`.
        """
        with self._looking:
            moment = self._look(pin, unless)
            if moment is not None:
                sizes = {name: t.pinned_rows(pin) for name, t in moment.parameters.tables.items()}
                self._since[state] = Since(moment.life, moment.books.version, sizes)
            return moment

    def begin_at(self, cut: str, state: str) -> int:
        """Hold on to the state of a cut that is pinned, and return which life it is of.

        Raises NotPinned.
        """
        with self._looking:
            _, books = self._store.pins.books(cut)
            moment = self._look(_LOOK, None)
            try:
                tables = moment.parameters.tables if moment else dict[str, Table]()
                life = moment.life if moment else 0
                self._store.pins.books(cut)  # still: so it is of these parameters
                owed = {name: table.written_since(cut) for name, table in tables.items()}
                sizes = {name: table.pinned_rows(cut) for name, table in tables.items()}
                self._since[state] = Since(life, books.version, sizes, owed)
            except KeyError as error:
                raise self._store.pins.not_pinned(cut) from error
            finally:
                if moment is not None:
                    self._store.pins.unpin_moment(moment)
            return life

    def _look(self, pin: str, unless: ShardBooks | None) -> Moment | None:
        """Pin with a mark, and note for all states what has been written until then."""
        moment = self._store.pins.pin_moment(pin, unless)
        if moment is None:
            return None
        try:
            touched = {name: t.touched(pin) for name, t in moment.parameters.tables.items()}
            for since in self._since.values():
                if since.life == moment.life:
                    for name, numbers in touched.items():
                        since.note(name, numbers)
        except BaseException:  # some marks are read and noted nowhere
            self._since.clear()
            self._store.pins.unpin_moment(moment)
            raise
        return moment
