"""Digests of what a job's data held, compared with those of now. Pure.

data/content.py makes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import UsageError

Content = tuple[str, str, str]  # source, digest, when it was written ("": all of it was read)


def compared(
    before: Sequence[Content], now: Sequence[Content], when: str, instead: str
) -> list[str]:
    """Return what a user should know of data that may be other data than before.

    Raises UsageError where it surely is. `when` is the end of "since ..." and `instead` what to do.
    A source without a digest, or that was not there, is not compared.
    """
    then = {source: (digest, written) for source, digest, written in before}
    anew = []
    for source, digest, written in now:
        old_digest, old_written = then.get(source, ("", ""))
        if not (old_digest and digest):
            continue
        if old_digest != digest:
            raise UsageError(
                f"{source} has changed since {when}: the same positions would be other records. "
                f"{instead}"
            )
        if old_written != written:
            anew.append(source)
    if not anew:
        return []
    more = f" and {len(anew) - 1} more sources" if len(anew) > 1 else ""
    note = f"{anew[0]}{more}: written anew since {when}. What was looked at is the same, so it is"
    return [f"{note} taken for the same data"]
