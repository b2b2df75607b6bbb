"""The end of a process, and its stacks.

The process may have daemon threads in native code, or be one that is starting. One that the system
gives no more threads or memory ends: without the thread that it lacks it would live on and answer
nobody.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

# As Java's processes have it: kill -QUIT shows where one stands.
STACK_SIGNAL: Final = signal.SIGQUIT
# EX_OSERR of sysexits.h: "an operating system error ... such things as `cannot fork'".
STARVED: Final = 71
_STARVED_WORDS = (
    "the system gives no more threads or memory: see the limits of processes and memory (ulimit -u, "
    "ulimit -v, those of the container)"
)


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


def lacks_thread(error: BaseException | None) -> bool:
    """Tell whether an error says that the system gives this process no more threads."""
    return isinstance(error, RuntimeError) and "can't start new thread" in str(error)


def is_starved(error: BaseException | None) -> bool:
    """Tell whether an error says that the system gives this process no thread, or no memory."""
    return isinstance(error, MemoryError) or lacks_thread(error)


def starved(error: BaseException | None) -> str:
    """Return a sentence for the user of an error of which `is_starved` is true."""
    return f"{error!r}: {_STARVED_WORDS}."


def ended_with(code: int) -> str:
    """Return an exit code of a process of a job in words."""
    return f"ended with exit code {code}{f' ({_STARVED_WORDS})' if code == STARVED else ''}"


def end_where_starved() -> None:
    """Have a thread that ends for want of threads or memory end this process with STARVED.

    Of gRPC's server it is the thread that takes all calls.
    """
    before = threading.excepthook

    def hook(found: threading.ExceptHookArgs) -> None:
        if is_starved(found.exc_value):
            _end_starved(found.exc_value)
        before(found)

    threading.excepthook = hook


def end_with(main: Callable[[], int]) -> NoReturn:
    """End with the exit code of `main`, or with STARVED where it finds no threads or memory."""
    end_where_starved()
    try:
        code = main()
    except (MemoryError, RuntimeError) as error:
        if not is_starved(error):
            raise
        _end_starved(error)
    leave(code)


def _end_starved(error: BaseException | None) -> NoReturn:
    try:
        traceback.print_exception(error)
        print(f"edl: error: {starved(error)}", file=sys.stderr, flush=True)
    finally:  # there may be no memory for words either
        os._exit(STARVED)


def leave(code: int) -> NoReturn:
    """End with `code` without tearing the interpreter down.

    Teardown frees what daemon threads still use inside gRPC or torch: once in some hundred ends
    that is a SIGSEGV instead of the exit code. Whatever must be on disk has been closed before.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
