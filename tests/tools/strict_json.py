"""JSON as other languages read it: NaN and Infinity are no numbers of its grammar (RFC 8259)."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def strict(text: str | bytes) -> Any:
    """Return the values of JSON. Raises ValueError for Python's tokens too."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(token: str) -> NoReturn:
    raise ValueError(f"{token} is no JSON")
