"""The teachers that are named, asked who they are before anything begins.

All that answer must know the student's identity and be one teacher, by their fingerprints. One that
does not answer yet is no fault: whoever comes later is met then (alike.py). Foreign ones tell
nothing of themselves.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import wait
from functools import partial

from ..common import background
from ..common.errors import EdlError, Unauthenticated, Unreachable, UsageError
from ..common.identity import Identity
from ..common.teacher_address import Registered, Served, another_one, parse
from ..registry.client import RegistryClient
from ..registry.identity import VARIABLE
from .link import CONNECT_S, TeacherLink

_ANSWER_S = CONNECT_S + 1.0


def call_roll(addresses: Sequence[str], identity: Identity) -> None:
    """Check that those who answer are one teacher, which knows this identity.

    Raises UsageError, and EdlError for a registry that does not know it, or is none.
    """
    asked = [background.begin("call-roll", partial(_told_by, each, identity)) for each in addresses]
    wait(asked, _ANSWER_S)
    first: tuple[str, str] | None = None
    for future in asked:
        if not future.done() or (told := future.result(0)) is None:
            continue
        first = first or told
        if told[1] != first[1]:
            raise UsageError(another_one(*told, f"that at {first[0]}", first[1]))


def _told_by(address: str, identity: Identity) -> tuple[str, str] | None:
    """Return where a teacher is, and its fingerprint; None: nobody tells. Raises UsageError."""
    found = parse(address)
    if isinstance(found, Served):
        return None
    if isinstance(found, Registered):
        return _told_at(found, identity)
    link = TeacherLink(address, identity)
    try:
        told = str(link.about().get("fingerprint") or "")
    except Unauthenticated as error:
        said = "is not what it was given" if os.environ.get(VARIABLE) else "is not set"
        raise UsageError(
            f"the teacher at {address} does not know this student, for {VARIABLE} {said} "
            f"({error}): set it to the line that `edl teach` has printed there"
        ) from error
    except (EdlError, OSError):
        return None
    finally:
        link.close()
    return (address, told) if told else None


def _told_at(where: Registered, identity: Identity) -> tuple[str, str] | None:
    """Return one of those who have registered; None: nobody. Raises EdlError."""
    client = RegistryClient(where.registry, identity)
    try:
        listed = client.list(where.name).teachers
    except Unreachable:
        return None
    finally:
        client.close()
    told = [(each.address, each.fingerprint) for each in listed if each.fingerprint]
    return told[0] if told else None
