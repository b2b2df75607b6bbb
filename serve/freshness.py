"""The age of what a model answers with, and whether that is too old. Pure: `now` is passed in."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any


def age_s(about: Mapping[str, Any], now: float) -> float:
    """Return the seconds since a version was written, by what it says of itself; NaN: it does not.

    `now`: seconds since 1970, of this machine, whose clock may differ from the writer's.
    """
    try:
        created = datetime.datetime.fromisoformat(str(about.get("created", "")))
    except ValueError:
        return math.nan
    if created.tzinfo is None:
        created = created.replace(tzinfo=datetime.UTC)
    return max(0.0, now - created.timestamp())


def too_old(name: str, about: Mapping[str, Any], max_age_s: float, now: float) -> str:
    """Return why a model is not fresh enough; "": it is. `max_age_s` 0: any age will do."""
    if not max_age_s:
        return ""
    found_s = age_s(about, now)
    if found_s <= max_age_s:
        return ""
    told = "does not say when it was written" if math.isnan(found_s) else f"is {found_s:.0f} s old"
    return (
        f"what the model {name!r} answers with {told}, and --max_age_s is {max_age_s:g}: see "
        "whether its job runs and writes deltas (--delta_s), and whether this server can read them"
    )
