"""Processes with a line each, forked from one that has imported everything: 64 start in seconds."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

_END_S = 120.0


@contextlib.contextmanager
def processes(
    target: Callable[..., None], arguments: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[list[Connection], list[int]]]:
    """Run `target(line, *given)` for each of `arguments`; yield lines and pids.

    None on a line ends its process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", target.__module__])  # counts for the first call
    lines = [context.Pipe() for _ in arguments]
    started = [
        context.Process(target=target, args=(theirs, *given), daemon=True)
        for given, (_, theirs) in zip(arguments, lines, strict=True)
    ]
    for process in started:
        process.start()
    for _, theirs in lines:
        theirs.close()  # so that the line of a process that fails ends with EOFError
    try:
        yield [mine for mine, _ in lines], [process.pid or 0 for process in started]
    finally:
        for mine, _ in lines:
            with contextlib.suppress(BrokenPipeError):
                mine.send(None)
        for process in started:
            process.join(_END_S)
