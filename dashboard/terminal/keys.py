"""The keys that a terminal's bytes mean. Pure.

A key is its character, or a word: up, enter, esc. A sequence that is not known here is no key, and
neither is any part of it. What is pasted is none either: a text must not stop a job.
"""

from __future__ import annotations

import codecs
import re

_ESC = "\x1b"
_PASTE = f"{_ESC}[200~", f"{_ESC}[201~"  # the beginning and the end of what is pasted
# CSI: its parameters, then one letter; SS3: one letter; else one character, as Alt sends it.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|[^\[O])", re.DOTALL)
_MOST = 64  # characters of a sequence; a longer one is none
_WORDS = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x0c": "redraw",  # Ctrl-L
}
_SEQUENCES = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "[H": "home",
    "[F": "end",
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
    "OH": "home",
    "OF": "end",
    "[1~": "home",
    "[4~": "end",
    "[5~": "pageup",
    "[6~": "pagedown",
    "[7~": "home",
    "[8~": "end",
    "OM": "enter",
    "Ok": "+",
    "Om": "-",
}


class Keys:
    """The keys of one terminal, of bytes that come in any pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._pasted = False

    @property
    def waits(self) -> bool:
        """Tell whether what came last may be the Esc key, or the beginning of something longer."""
        return self._rest.startswith(_ESC) and not self._pasted

    def feed(self, data: bytes) -> list[str]:
        """Return the keys that are known by now."""
        self._rest += self._decoder.decode(data)
        keys = []
        while self._rest:
            if self._pasted:
                if not self._skip_pasted():
                    break
                continue
            if self._rest[0] != _ESC:
                first, self._rest = self._rest[0], self._rest[1:]
                if first in _WORDS or first.isprintable():
                    keys.append(_WORDS.get(first, first))
                continue
            found = _SEQUENCE.match(self._rest)
            if found is None:
                if len(self._rest) > _MOST:
                    self._rest = ""
                break
            if found[0] == _ESC * 2:  # the Esc key, and then another or a sequence
                keys.append("esc")
                self._rest = self._rest[1:]
                continue
            self._rest = self._rest[found.end() :]
            self._pasted = found[0] == _PASTE[0]
            if (key := _SEQUENCES.get(found[0][1:])) is not None:
                keys.append(key)
        return keys

    def flush(self) -> list[str]:
        """Return the Esc key, if nothing came after it for a while."""
        if not self.waits:
            return []
        alone, self._rest = self._rest == _ESC, ""
        return ["esc"] if alone else []

    def _skip_pasted(self) -> bool:
        """Drop what was pasted; return whether that has ended."""
        _, end, after = self._rest.partition(_PASTE[1])
        if end:
            self._pasted, self._rest = False, after
            return True
        self._rest = self._rest[-len(_PASTE[1]) :]
        return False
