"""Words of others as one plain line: no escape of theirs reaches a terminal, none fills a page."""

from __future__ import annotations


def plain(text: str, most: int) -> str:
    """Return a text of at most so many characters, without breaks and what is not printed."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    line = " ".join(shown.split())
    return line if len(line) <= most else f"{line[: most - 3].rstrip()}..."
