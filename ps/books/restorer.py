"""The restorer, which fills a shard with what a snapshot or a checkpoint holds."""

from __future__ import annotations

from ...nn.model_spec import ModelSpec
from ..rows.table import RowBlock
from .aggregation import Aggregation, Update
from .dense import Chunk, ChunkKey
from .ledger import Ledger
from .parameters import Parameters
from .state import ShardBooks, ShardState


class Restorer:
    """The way to fill one shard: first `begin`, then chunks and rows, then what is known last."""

    def __init__(self, state: ShardState) -> None:
        self._state = state

    def begin(self, spec: ModelSpec, books: ShardBooks, *, new_job: bool) -> None:
        """Begin with the model and the books of a snapshot.

        new_job: the ledger and what waits in the aggregation belong to the old job and are left
        out, and the first Init may bring another optimizer or seed.
        """
        with self._state.lock:
            self._state.begin(Parameters(spec, self._state.slot_map, self._state.index))
            self._state.spec_is_final = not new_job
            self._state.version = books.version
            if not new_job:
                self._state.ledger = self._ledger_of(books)
                self._state.aggregation = Aggregation(self._state.policy, books.pushes)

    def set_books(self, books: ShardBooks) -> None:
        """Take the books of a later snapshot, whose chunks and rows are there."""
        with self._state.lock:
            self._state.end_view()
            self._state.version = books.version
            self._state.ledger = self._ledger_of(books)
            self._state.aggregation = Aggregation(self._state.policy, books.pushes, books.sums)

    def _ledger_of(self, books: ShardBooks) -> Ledger:
        return Ledger(books.ledger, books.low_water, self._state.ledger.tasks_below)

    def set_sums(self, sums: Update) -> None:
        """Take what waits in the aggregation, beside the number of pushes that `begin` was told."""
        with self._state.lock:
            self._state.aggregation = Aggregation(
                self._state.policy, self._state.aggregation.pushes, sums
            )

    def insert_chunk(self, key: ChunkKey, chunk: Chunk) -> None:
        """Put a chunk into the shard, with its optimizer state."""
        with self._state.lock:
            self._state.end_view()
            self._state.held().dense.insert(key, chunk)

    def insert_rows(self, table: str, block: RowBlock) -> None:
        """Put rows into the shard, with their optimizer state."""
        with self._state.lock:
            self._state.held().tables[table].insert(block)

    def put_rows(self, table: str, block: RowBlock) -> None:
        """Put rows into the shard, in place of those that are there."""
        with self._state.lock:
            self._state.held().tables[table].put(block)
