"""A text for truncated backpropagation through time, elastic.

Each pair of a token and its next one is read once.

    for batch in AdaptiveBPTTIterator(tokens, batch_size=32, bptt_len=35):
        loss = criterion(net(batch.text), batch.target)     # both [35, this replica's columns]

The pairs stand in `batch_size` columns of consecutive ones, a step reads the next `bptt_len` rows,
and the replicas share the columns, so any number of them reads what one would. Nothing is padded or
dropped: columns that are longer by one pair have it in one more micro-batch of the last step,
weighed as in positions.py.

The place is a row. Where the batch changes within a pass, what is left of the columns is put one
behind the other and split into columns anew: the checkpoint has these ranges of pairs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..common.errors import UsageError
from ..common.order import part_of
from . import checkpoint, collective, data
from .epoch import epochs
from .loop import AdaptiveDataLoaderMixin
from .profile import Bounds

Range = tuple[int, int]
Part = tuple[range, NDArray[np.int64]]  # rows, and the numbers of columns


class BPTTBatch(NamedTuple):
    """Tokens and the ones that follow them, int[rows, columns].

    With `batch_first` they are int[columns, rows].
    """

    text: Tensor
    target: Tensor


class Layout:
    """Ranges of pairs, one behind the other, split into columns. Pure.

    The columns differ by one pair at most.
    """

    def __init__(self, ranges: Iterable[Range], columns: int) -> None:
        self.ranges = [(int(start), int(stop)) for start, stop in ranges if start < stop]
        self.columns = columns
        starts, stops = np.array(self.ranges, dtype=np.int64).reshape(-1, 2).T
        self._starts, self._stops = starts, np.cumsum(stops - starts)  # the latter in this order
        size = int(self._stops[-1]) if len(starts) else 0
        self._tops = size * np.arange(columns + 1, dtype=np.int64) // columns
        self.rows = size // columns  # that all columns have
        self.longer = np.flatnonzero(np.diff(self._tops) > self.rows)

    @property
    def height(self) -> int:
        """The rows of the longest column."""
        return self.rows + bool(len(self.longer))

    def pairs(self, rows: range, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where in the text these pairs are, int64[rows, columns]."""
        at = self._tops[columns] + np.arange(rows.start, rows.stop)[:, None]
        held = np.searchsorted(self._stops, at, side="right")
        before = np.concatenate([[0], self._stops])[held]
        return self._starts[held] + at - before  # type: ignore[no-any-return]

    def rest(self, row: int) -> list[Range]:
        """Return the ranges that are left from this row on."""
        ranges: list[Range] = []
        for top, bottom in zip(self._tops[:-1] + row, self._tops[1:], strict=True):
            first = int(np.searchsorted(self._stops, top, side="right"))
            for (_, stop), end in zip(self.ranges[first:], self._stops[first:], strict=True):
                if top >= bottom:
                    break
                begin, until = stop - int(end - top), stop - max(0, int(end - bottom))
                if ranges and ranges[-1][1] == begin:
                    begin = ranges.pop()[0]
                ranges.append((begin, until))
                top = end
        return ranges

    def step(self, row: int, rows: int, micros: int) -> tuple[int, list[Part]]:
        """Return the row after the step that begins at this one, and its micro-batches."""
        stop = min(row + rows, self.rows)
        shares = [part_of(0, self.columns, micro, micros) for micro in range(micros)]
        parts = [
            (range(row, stop), np.arange(share.start, share.stop)) for share in shares if row < stop
        ]
        if stop == self.rows and len(self.longer):
            return self.height, [*parts, (range(stop, self.height), self.longer)]
        return stop, parts


@dataclass(eq=False, repr=False)
class AdaptiveBPTTIterator(AdaptiveDataLoaderMixin):
    """The batches of a text, elastic: all its pairs of tokens each once a pass.

    Raises ValueError where `bptt_len` is no whole number of at least 1, TypeError where the tokens
    are no row of whole numbers.
    """

    # The tokens: a tensor, an array or any iterable of whole numbers, or what torchtext had, an
    # object whose `fields["text"].numericalize([dataset[0].text])` gives them.
    dataset: Any
    batch_size: int  # of all replicas together, in columns
    bptt_len: int
    _: KW_ONLY
    max_batch_size: int | None = None  # with it the batch follows the goodput
    local_bsz_bounds: Bounds | None = None  # as those of `autoscale_batch_size`
    device: torch.device | str | None = None
    batch_first: bool = False
    repeat: bool = False  # begin anew for ever
    train: bool = True  # says nothing: whether a loop trains shows

    def __post_init__(self) -> None:
        if not isinstance(self.bptt_len, int) or self.bptt_len < 1:
            raise ValueError(f"bptt_len is {self.bptt_len!r}: give a whole number of at least 1")
        self.batch_first = self.batch_first or getattr(_field(self.dataset), "batch_first", False)
        self._tokens = _tokens(self.dataset)
        self._pairs = max(0, len(self._tokens) - 1)
        super().__init__(self.batch_size, pass_records=self._pairs // self.bptt_len)
        self._state = _TextState(epochs().name_of("text"))
        epochs().forget_after(self._state)
        if self.max_batch_size is not None:
            self.autoscale_batch_size(self.max_batch_size, self.local_bsz_bounds)

    def __len__(self) -> int:
        """Return the micro-batches of a whole pass with the batch in use."""
        batch = self._elastic.batch
        layout = Layout([(0, self._pairs)], batch.total)
        whole = math.ceil(layout.rows / self.bptt_len) * (batch.accumulation + 1)
        return whole + bool(len(layout.longer))

    def __iter__(self) -> Iterator[BPTTBatch]:
        elastic = self._elastic
        with elastic.context():
            if elastic.skipdone() or not self._pairs:
                return
            elastic._sync_local_bsz()
            while True:
                yield from self._pass()
                if not self.repeat:
                    return
                elastic.current_index = elastic.end_index = 0

    def _pass(self) -> Iterator[BPTTBatch]:
        elastic = self._elastic
        rank, replicas = collective.place()
        layout = self._lay()
        while elastic.current_index < elastic.end_index:
            elastic.boundary()
            row, micros = elastic.current_index, elastic.batch.accumulation + 1
            after, parts = layout.step(row, self.bptt_len, micros)
            pairs = sum(len(rows) * len(columns) for rows, columns in parts)
            records = math.ceil(pairs / self.bptt_len)
            for rows, columns in parts:
                share = part_of(0, len(columns), rank, replicas)
                mine = columns[share.start : share.stop]
                weight = len(rows) * len(mine) * replicas * len(parts) / pairs
                elastic.take(len(parts), records, weight)
                with elastic.micro_batch(commit=pairs == layout.columns * self.bptt_len):
                    yield self._batch(layout, rows, mine if len(mine) else columns[:1])
            elastic.current_index = after
            if elastic.steps_of_loop % data.RETUNE_STEPS == 0:
                elastic._sync_local_bsz()
                layout = self._lay()

    def _lay(self) -> Layout:
        """Return the columns for the batch in use, of what is left of the pass."""
        elastic, state = self._elastic, self._state
        columns = elastic.batch.total
        if not elastic.end_index:  # a new pass
            state.ranges, state.columns, state.pairs = [(0, self._pairs)], columns, self._pairs
            elastic.current_index = 0
        elif state.pairs != self._pairs:
            raise UsageError(
                f"the text has {self._pairs + 1} tokens, and had {state.pairs + 1} when the "
                "checkpoint was written in the middle of it: go on with that text, or without the "
                "checkpoint"
            )
        elif state.columns != columns:
            state.ranges = Layout(state.ranges, state.columns).rest(elastic.current_index)
            state.columns, elastic.current_index = columns, 0
        layout = Layout(state.ranges, state.columns)
        elastic.end_index = layout.height
        return layout

    def _batch(self, layout: Layout, rows: range, columns: NDArray[np.int64]) -> BPTTBatch:
        pairs = torch.from_numpy(layout.pairs(rows, columns))
        both = self._tokens[pairs], self._tokens[pairs + 1]
        text, target = (x.t().contiguous() if self.batch_first else x for x in both)
        return BPTTBatch(text.to(self.device), target.to(self.device))


class _TextState(checkpoint.State):
    """The columns of the pass that is read, as of its last layout."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ranges: list[Range] = []
        self.columns = 1
        self.pairs = 0
        checkpoint.load_state(self)

    def save(self, fileobj: BinaryIO) -> None:
        values = {"ranges": self.ranges, "columns": self.columns, "pairs": self.pairs}
        fileobj.write(json.dumps(values).encode())

    def load(self, fileobj: BinaryIO) -> None:
        values = json.loads(fileobj.read())
        self.ranges = [(start, stop) for start, stop in values["ranges"]]
        self.columns, self.pairs = values["columns"], values["pairs"]


def _field(dataset: object) -> Any:
    """Return torchtext's field of the text, None where it is none of its data sets."""
    fields = getattr(dataset, "fields", None)
    return fields.get("text") if isinstance(fields, dict) else None


def _tokens(dataset: Any) -> Tensor:
    """Return the tokens, int[len] on the CPU. Raises TypeError where they are none."""
    field = _field(dataset)
    if field is not None:
        dataset = field.numericalize([dataset[0].text]).flatten()
    try:
        tokens = torch.as_tensor(
            dataset if isinstance(dataset, Tensor | np.ndarray) else list(dataset)
        ).cpu()
    except (TypeError, ValueError) as error:
        raise TypeError(f"the tokens of a text are whole numbers: {error}") from error
    if tokens.dim() != 1 or tokens.dtype == torch.bool or tokens.is_complex():
        raise TypeError(
            f"the tokens of a text are one row of whole numbers, not {tuple(tokens.shape)}"
        )
    if tokens.is_floating_point() and len(tokens):
        raise TypeError(f"the tokens of a text are whole numbers, not {tokens.dtype}")
    return tokens
