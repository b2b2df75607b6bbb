"""Teachers of no job: they answer whoever has their identity."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from collections.abc import Callable

from ..common import listen
from ..common.errors import UsageError
from ..common.identity import Identity, job_identity
from ..common.listen import is_loopback
from ..common.rpc import job_token
from .server import Teach, Teacher

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


def serve(
    teach: Teach,
    about: dict[str, str],
    *,
    port: int,
    max_batch_size: int,
    max_queue_delay_s: float,
    say: Callable[[str], None],
) -> None:
    """Teach until SIGTERM or SIGINT.

    `say` is told where, and how students prove that they may ask.
    """
    host = listen.own_host()
    mine = teachers_identity() if os.environ.get(VARIABLE) else None
    if mine is None:
        token = secrets.token_hex(16)
        mine = Identity(token) if is_loopback(host) else Identity.create(token)
        say(f"export {VARIABLE}={mine.to_variable()}")
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    teacher = Teacher(identity=mine, host=host, port=port)
    try:
        teacher.begin(
            teach, about, max_batch_size=max_batch_size, max_queue_delay_s=max_queue_delay_s
        )
        say(f"teaching at {listen.joined(host, teacher.listening.tcp_port)}")
        over.wait()
        teacher.drain(2.0)
        say(f"taught {teacher.rows} records")
    finally:
        teacher.close()
