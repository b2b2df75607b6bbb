"""Settings that stand in a job's folder."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from .errors import UsageError
from .foreign import read_plain


@dataclass(frozen=True)
class Stored:
    """Settings that stand in a job's folder."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the settings that `to_json` wrote. Unknown names raise TypeError."""
        return cls(**json.loads(text))

    @classmethod
    def of_job(cls, folder: Path) -> Self:
        """Read the settings in a job's folder. Raises UsageError where none of this version are."""
        path = folder / "settings.json"
        try:
            return cls.from_json(read_plain(path).decode())
        except OSError as error:
            raise UsageError(f"{folder} is no job's folder: {error}.") from error
        except (TypeError, ValueError) as error:
            raise UsageError(f"{path} is not of this version: {error}.") from error
