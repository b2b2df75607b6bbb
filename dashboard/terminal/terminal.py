"""The terminal while it is ours: key by key, without echo, on its alternate screen.

It is given back on every way out: an end, an error, a signal, a pause by Ctrl-Z. What was on the
screen before comes back, too. What is written to stderr meanwhile, by whatever library, would stand
amid the screen: it is said afterwards.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import termios
import tty
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

# The alternate screen, no cursor, and what is pasted is marked as such (keys.py drops it).
_TAKE = "\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[H\x1b[2J"
_GIVE_BACK = "\x1b[?2004l\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR = "\x1b[H", "\x1b[2J"
_READ = 4096
_MOST_SAID = 1 << 16
_DEFAULT = 80, 24  # of a terminal that does not know its size


class Terminal:
    """A terminal, whose keys come from `keyboard` and whose screen is the console's.

    `errors`: the descriptor of stderr. A context manager: the terminal is ours within.
    """

    def __init__(self, keyboard: int, console: Console, errors: int = 2) -> None:
        self._keyboard = keyboard
        self._console = console
        self._errors = errors
        self._kept: tuple[int, BinaryIO] | None = None  # stderr itself, and what it is to say
        self._before: list[Any] = []
        self._drawn: tuple[tuple[int, int], str] | None = None

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._keyboard)
        try:
            self._take()
        except BaseException:
            self._give_back()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._give_back()

    def fileno(self) -> int:
        return self._keyboard

    def read(self) -> bytes:
        """Return what was typed; nothing where the terminal is gone."""
        try:
            return os.read(self._keyboard, _READ)
        except OSError:
            return b""

    @property
    def size(self) -> tuple[int, int]:
        """Return the columns and the lines."""
        try:
            columns, lines = os.get_terminal_size(self._keyboard)
        except OSError:
            return _DEFAULT
        return columns or _DEFAULT[0], lines or _DEFAULT[1]

    @property
    def ascii_only(self) -> bool:
        return self._console.options.ascii_only

    def draw(self, lines: Sequence[Text], width: int) -> None:
        """Show lines of this width from the top. Raises OSError where the terminal is gone."""
        with self._console.capture() as captured:
            whole = Text("\n").join(lines)
            self._console.print(
                whole, end="", width=width, no_wrap=True, overflow="ignore", crop=False
            )
        shape = width, len(lines)
        if self._drawn == (shape, captured.get()):
            return
        clear = "" if self._drawn is not None and self._drawn[0] == shape else _CLEAR
        self._drawn = shape, captured.get()
        self._write(f"{_HOME}{clear}{captured.get()}")

    def forget(self) -> None:
        """Have the next lines be drawn on an empty screen."""
        self._drawn = None

    def pause(self) -> None:
        """Give the terminal back and stop, as Ctrl-Z does; return when the process goes on."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
        self.forget()

    def _take(self) -> None:
        tty.setcbreak(self._keyboard, termios.TCSADRAIN)
        if os.isatty(self._errors):
            self._kept = os.dup(self._errors), tempfile.TemporaryFile()  # noqa: SIM115
            os.dup2(self._kept[1].fileno(), self._errors)
        self._write(_TAKE)

    def _give_back(self) -> None:
        # A terminal that is gone has nothing to be given back.
        with contextlib.suppress(OSError):
            self._write(_GIVE_BACK)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._before)
        if self._kept is not None:
            (errors, said), self._kept = self._kept, None
            os.dup2(errors, self._errors)
            os.close(errors)
            with said, contextlib.suppress(OSError):
                said.seek(0)
                os.write(self._errors, said.read(_MOST_SAID))

    def _write(self, text: str) -> None:
        data = text.encode(self._console.encoding, "replace")
        while data:
            data = data[os.write(self._console.file.fileno(), data) :]
