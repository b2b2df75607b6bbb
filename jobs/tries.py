"""The starts of a queued job of this machine at which its master ended before it served.

They are in the job's folder, so that whoever schedules next knows of them too. A job that has died
at each of so many starts, after pauses that grow, is not begun again.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from ..common import storage
from ..common.errors import UsageError
from ..common.foreign import must_be, parse, read_plain
from ..common.retry import Backoff
from ..common.times import rfc3339

MOST = 3
_FILE = "tries.json"
_PAUSES = Backoff(10.0, 60.0)  # guesses


@dataclass(frozen=True)
class Tries:
    """The number of starts, when the last one was (s since the epoch), and how it ended.

    `why`: "" where nobody has looked yet. `exit_code`: what the job's will be if it ends so.
    """

    number: int = 0
    last: int = 0
    why: str = ""
    exit_code: int = 1

    @property
    def again_at(self) -> float:
        """The time of the next start, s since the epoch."""
        return self.last + _PAUSES.after(self.number)

    @property
    def are_over(self) -> bool:
        """Tell whether it is not begun again."""
        return self.number >= MOST

    def told(self) -> str:
        """Return what a user should know of a job that has died at its start."""
        if self.are_over:
            return f"its master ended at each of {self.number} starts; at the last one: {self.why}"
        return (
            f"its master has ended at its start, {self.number} of {MOST} times, and it is begun "
            f"again after {rfc3339(self.again_at)}: {self.why}"
        )


def read(folder: Path) -> Tries:
    """Return the tries of the job in this folder. Raises UsageError, which names the file."""
    path = folder / _FILE
    try:
        values = parse(read_plain(path))
        must_be(values, {"number": int, "last": int, "why": str, "exit_code": int})
        names = [field.name for field in dataclasses.fields(Tries)]
        return Tries(**{name: values[name] for name in names})
    except FileNotFoundError:
        return Tries()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} does not say how often the job was begun: {error}") from error


def write(folder: Path, tries: Tries) -> None:
    """Keep the tries of the job in this folder. Raises OSError."""
    storage.write_file(folder / _FILE, json.dumps(dataclasses.asdict(tries)).encode())
