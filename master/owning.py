"""The name of a job as the owner of folders, which those that go on with it keep.

The journal has it for all masters of the job, and each checkpoint for a job that goes on with it by
--resume: they are one owner, to whoever follows the deltas (common/deltas.py) and to OWNER in a
folder (common/claims.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ..common import storage
from ..common.errors import CheckpointError
from ..common.foreign import plain_name
from ..common.identity import job_id
from ..common.settings import JobSettings
from ..durable.journal import Journal

KEY = "owner"  # in a checkpoint's books
_NAME = "deltas"  # of the named state in the journal: versions before kept it for their sake alone
_MOST_LETTERS = 200


def named(settings: JobSettings, token: str) -> str:
    """Return the name that no other job has, or that of the job with whose checkpoint it goes on.

    It is the same each time.
    """
    if settings.command == "train" and settings.resume:
        with contextlib.suppress(CheckpointError):  # whoever opens it says why
            owner = storage.load(settings.resume, checksums=False).books.get(KEY)
            if isinstance(owner, str) and plain_name(owner) and len(owner) <= _MOST_LETTERS:
                return owner
    return f"{settings.job_name}-{job_id(token)}"


def remembered(journal: Journal, make: Callable[[], str]) -> str:
    """Return the name that the journal has, or has from now on."""
    known = journal.get(_NAME)
    if known is None:
        known = {"job": make()}
        journal.put(_NAME, known)
    return str(known["job"])
