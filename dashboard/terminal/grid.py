"""The lines of a table of which there may be more rows than the screen has lines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import set_cell_size
from rich.text import Text

from ...common.plain import inert
from ...jobs.view import STYLES
from .machine import State
from .tables import Column, Row

_WIDEST = 40  # of a cell
_GAP = 2
_MARGIN = 2  # where the cursor is
_LEAST = 12  # of a column that is cut


def fitted(line: Text, width: int) -> Text:
    """Return a line cut or filled to a width."""
    line = line.copy()
    line.truncate(width, overflow="ellipsis", pad=True)
    return line


def table(state: State, width: int, room: int, cursor: bool = True) -> list[Text]:
    """Return the lines of the table that is shown: its head, and the rows around the cursor."""
    rows, at = state.rows, state.cursor.at
    space = max(0, room - 1)
    first = max(0, min(at - space // 2, len(rows) - space))
    shown = rows[first : first + space]
    columns = [column for column in state.columns if column.need <= width]
    cells = [[inert(column.text(row)) for column in columns] for row in shown]
    heads = [_head(column, state) for column in columns]
    widths = _widths(heads, cells, width)
    made = [Text("  ") + _row(heads, widths, columns, "bold")]
    if len(rows) > len(shown):
        made[0].append(f"  {first + 1}-{first + len(shown)} of {len(rows)}", "dim")
    for number, (row, texts) in enumerate(zip(shown, cells, strict=True), first):
        chosen = cursor and number == at
        line = Text("> " if chosen else "  ") + _row(texts, widths, columns, "", row)
        if chosen:
            line = fitted(line, width)
            line.stylize("reverse")
        made.append(line)
    return made


def _head(column: Column, state: State) -> str:
    if column is not state.columns[state.cursor.column % len(state.columns)]:
        return column.name
    return f"{column.name}{'▼' if column.falls != state.cursor.backwards else '▲'}"


def _widths(heads: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the widths of the columns; the longest give way."""
    widths = []
    for number, head in enumerate(heads):
        longest = max((Text(each[number]).cell_len for each in cells), default=0)
        widths.append(min(_WIDEST, max(len(head), longest)))
    over = _MARGIN + sum(widths) + _GAP * (len(widths) - 1) - width
    while over > 0 and max(widths) > _LEAST:
        widths[widths.index(max(widths))] -= 1
        over -= 1
    return widths


def _row(
    texts: Sequence[str],
    widths: Sequence[int],
    columns: Sequence[Column],
    style: str,
    row: Row | None = None,
) -> Text:
    made = Text()
    for text, width, column in zip(texts, widths, columns, strict=True):
        short = Text(text)
        short.truncate(width, overflow="ellipsis")
        if column.right:
            shown = " " * (width - short.cell_len) + short.plain
        else:
            shown = set_cell_size(short.plain, width)
        is_state = row is not None and column.name == "state"
        made.append(shown, STYLES.get(text, "green") if is_state else style)
        made.append(" " * _GAP)
    made.rstrip()
    return made
