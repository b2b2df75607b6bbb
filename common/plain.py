"""Words of others for people: no character of theirs does anything to a terminal or to a text.

What a user's code raises, what names are made of and what a log says may hold anything. Characters
that control a terminal, change the direction of writing or are no character at all are told by
their numbers (`inert`), or left out of one line that must be short (`plain`).
"""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Callable
from typing import IO, Any, TextIO

_FIGURES = re.compile(r"[0-9]+(\.[0-9]+)?")
_TAB = 4


def inert(value: object, leave: str = "") -> str:
    r"""Return a text of which no character does anything but stand there.

    Control characters, what changes the direction of writing and what is no character are told by
    their numbers (\x1b, \u202e). `leave`: characters that are left as they are, such as "\n".
    """
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each in leave else _inert(each) for each in text.replace("\t", " " * _TAB)
    )


def inert_lines(value: object) -> str:
    """Return a text as `inert` does, which keeps its lines."""
    return inert(value, leave="\n")


def inert_texts(values: Any, shown: Callable[[str], str] = inert_lines) -> Any:
    """Return values, as JSON has them, with all their texts and names as `shown` has them."""
    if isinstance(values, str):
        return shown(values)
    if isinstance(values, dict):
        return {inert_texts(name, shown): inert_texts(one, shown) for name, one in values.items()}
    if isinstance(values, list | tuple):
        return [inert_texts(one, shown) for one in values]
    return values


def _inert(character: str) -> str:
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape").decode()


def plain(text: str, most: int) -> str:
    """Return a text of at most so many characters, without breaks and what is not printed."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    line = " ".join(shown.split())
    return line if len(line) <= most else f"{line[: most - 3].rstrip()}..."


def same_but_figures(one: str, other: str) -> bool:
    """Tell whether two texts differ in their numbers alone."""
    return _FIGURES.sub("0", one) == _FIGURES.sub("0", other)


def encodable(text: str, stream: IO[str]) -> str:
    r"""Return a text that the stream can encode: what it cannot is told by its number (\u2500)."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def print_all(stream: TextIO) -> None:
    r"""Have a stream tell what its encoding lacks by its number (\u2500), where it would raise."""
    if not isinstance(stream, io.TextIOWrapper):
        return
    is_utf8 = stream.encoding.lower().replace("-", "") == "utf8"
    if stream.errors == "strict" or (stream.errors == "surrogateescape" and not is_utf8):
        stream.reconfigure(errors="backslashreplace")
