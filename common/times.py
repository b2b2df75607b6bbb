"""Times as texts of RFC 3339, in UTC and whole seconds, as Kubernetes writes them. Pure."""

from __future__ import annotations

import datetime


def rfc3339(at: float) -> str:
    """Return a time, s since the epoch, as a text."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
