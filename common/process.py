"""The end of a process, and its stacks.

The process may have daemon threads in native code, or be one that is starting.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import signal
import sys
import threading
from typing import Final, NoReturn

# As Java's processes have it: kill -QUIT shows where one stands.
STACK_SIGNAL: Final = signal.SIGQUIT


def show_stacks() -> None:
    """Let a crash, and STACK_SIGNAL, write the stacks of all threads to stderr from now on.

    In C, without the GIL: also where user code keeps it for ever. Forked processes inherit it.
    """
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL, all_threads=True, chain=False)


def end_at_sigterm() -> None:
    """Let SIGTERM end this process, if it is process 1, until there is another handler.

    The first process of a container gets no signal that it has no handler for, so that a worker
    that is preempted while it imports torch would keep its room until its grace is over.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))


def end_by_signal() -> threading.Event:
    """Return what SIGTERM or SIGINT will set."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    return over


def allow_many_files() -> None:
    """Raise the limit of open files to the most that is allowed here.

    On most machines it is 1,024 at first, and a server has one for each connection.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def leave(code: int) -> NoReturn:
    """End with `code` without tearing the interpreter down.

    Teardown frees what daemon threads still use inside gRPC or torch: once in some hundred ends
    that is a SIGSEGV instead of the exit code. Whatever must be on disk has been closed before.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
