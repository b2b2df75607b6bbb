"""Words of others as one plain line: no escape of theirs reaches a terminal, none fills a page."""

from __future__ import annotations

import re

_FIGURES = re.compile(r"[0-9]+(\.[0-9]+)?")


def plain(text: str, most: int) -> str:
    """Return a text of at most so many characters, without breaks and what is not printed."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    line = " ".join(shown.split())
    return line if len(line) <= most else f"{line[: most - 3].rstrip()}..."


def same_but_figures(one: str, other: str) -> bool:
    """Tell whether two texts differ in their numbers alone."""
    return _FIGURES.sub("0", one) == _FIGURES.sub("0", other)
