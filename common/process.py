"""The end of a process, and its stacks.

The process may have daemon threads in native code, or be one that is starting. One that the system
gives no more threads or memory ends: without the thread that it lacks it would live on and answer
nobody.
"""

from __future__ import annotations

import errno
import faulthandler
import logging
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

# As Java's processes have it: kill -QUIT shows where one stands.
STACK_SIGNAL: Final = signal.SIGQUIT
# EX_OSERR of sysexits.h: "an operating system error ... such things as `cannot fork'".
STARVED: Final = 71
_THREADS = 8  # that a process must be able to have beside its own: a guess
_THREADS_S = 30.0  # in which each has ended
_STARVED_WORDS = (
    "the system gives no more threads or memory: see the limits of processes and memory (ulimit "
    "-u, ulimit -v, those of the container)"
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
    """Tell whether an error, or one that it hides, says that there are no more threads."""
    return any(
        isinstance(each, RuntimeError) and "can't start new thread" in str(each)
        for each in _all_of(error)
    )


def is_starved(error: BaseException | None) -> bool:
    """Tell whether an error, or one that it hides, says that there are no threads or no memory."""
    return lacks_thread(error) or any(
        isinstance(each, MemoryError) or (isinstance(each, OSError) and each.errno == errno.ENOMEM)
        for each in _all_of(error)
    )


def _all_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those in whose handling it was raised, the last one first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def starved(error: BaseException | None) -> str:
    """Return a sentence for the user of an error of which `is_starved` is true."""
    first = [each for each in _all_of(error) if is_starved(each)][-1]  # the others hide it
    return f"{str(first) or repr(first)}: {_STARVED_WORDS}."


def ended_with(code: int) -> str:
    """Return an exit code of a process of a job in words."""
    return f"ended with exit code {code}{f' ({_STARVED_WORDS})' if code == STARVED else ''}"


def check_threads(number: int = _THREADS) -> None:
    """Start so many threads at once, and end them. Raises RuntimeError where there are not as many.

    Python says so when it cannot start one. gRPC's core, which has threads of its own, tries again
    for ever, and answers nobody meanwhile.
    """
    over, began = threading.Event(), []
    try:
        for _ in range(number):
            thread = threading.Thread(target=over.wait, args=(_THREADS_S,), daemon=True)
            thread.start()
            began.append(thread)
    finally:
        over.set()
        for thread in began:
            thread.join(_THREADS_S)


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
    except Exception as error:  # also one that was met on the way out, and hides it
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
