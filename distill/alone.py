"""Teachers of no job: they answer whoever has their identity, and may register under a name."""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Callable

from ..common import listen
from ..common.errors import Unreachable, UsageError
from ..common.listen import HOST_VARIABLE, host_of, is_loopback
from ..common.process import end_by_signal
from ..registry.client import RegistryClient
from ..registry.identity import VARIABLE, identity_to_serve, teachers_identity
from ..registry.registering import Place, Registering
from ..registry.roll import Entry
from .server import Teach, Teacher

log = logging.getLogger("edl.distill")

_DRAIN_S = 2.0  # for those who have asked already


def check_place(place: Place) -> None:
    """Check that a teacher may register from here, before its model is loaded.

    A registry that is away is no fault. Raises UsageError, and Unauthenticated for an identity that
    is not the registry's.
    """
    if not os.environ.get(VARIABLE):
        raise UsageError(
            f"--registry: set {VARIABLE} to what `edl registry` has printed: teachers and students "
            "of a registry have one identity"
        )
    if is_loopback(listen.own_host()) and not is_loopback(host_of(place.registry)):
        raise UsageError(
            f"--registry {place.registry}: students of other hosts could not reach this teacher: "
            f"set {HOST_VARIABLE} to the address of this host"
        )
    client = RegistryClient(place.registry, teachers_identity())
    try:
        client.list(place.name)
    except Unreachable as error:
        log.info("registry=%s -> does not answer yet error=%r", place.registry, str(error))
    finally:
        client.close()


def serve(
    teach: Teach,
    about: dict[str, str],
    *,
    port: int,
    max_batch_size: int,
    max_queue_delay_s: float,
    say: Callable[[str], None],
    place: Place | None = None,
) -> None:
    """Teach until SIGTERM or SIGINT; at `place` it is registered meanwhile.

    `say` is told where, and how students prove that they may ask.
    """
    host = listen.own_host()
    mine = identity_to_serve(host, say)
    over = end_by_signal()
    teacher = Teacher(identity=mine, host=host, port=port)
    address = listen.joined(host, teacher.listening.tcp_port)
    with contextlib.ExitStack() as undo:
        undo.callback(teacher.close)
        teacher.begin(
            teach, about, max_batch_size=max_batch_size, max_queue_delay_s=max_queue_delay_s
        )
        say(f"teaching at {address}")
        registering: Registering | None = None
        if place is not None:
            client = RegistryClient(place.registry, mine)
            undo.callback(client.close)
            entry = Entry(address, about["fingerprint"], uuid.uuid4().hex, place.ttl_s)
            registering = Registering(client, place.name, entry, say)
        over.wait()
        if registering is not None:
            registering.leave()  # first: who hears of it asks others
        teacher.drain(_DRAIN_S)
        say(f"taught {teacher.rows} records")
