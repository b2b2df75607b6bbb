"""The identity of teachers of no job: who has it may ask them, and call their registry."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable

from ..common.errors import UsageError
from ..common.identity import Identity, job_identity
from ..common.listen import is_loopback
from ..common.rpc import job_token

VARIABLE = "EDL_TEACHERS_IDENTITY"


def teachers_identity() -> Identity:
    """Return the identity of teachers that this process asks: their own, or that of its job.

    Raises UsageError where the variable holds none.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return job_identity(job_token())
    try:
        return Identity.from_variable(text)
    except ValueError as error:
        raise UsageError(
            f"{VARIABLE} is no identity: copy the line that `edl teach` has printed"
        ) from error


def identity_to_serve(host: str, say: Callable[[str], None]) -> Identity:
    """Return the identity that whoever calls here must have: the given one, or a new one.

    `say` is told the variable by which others get a new one. Raises UsageError where what is given
    is none.
    """
    if os.environ.get(VARIABLE):
        return teachers_identity()
    token = secrets.token_hex(16)
    mine = Identity(token) if is_loopback(host) else Identity.create(token)
    say(f"export {VARIABLE}={mine.to_variable()}")
    return mine
