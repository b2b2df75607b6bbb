"""The cache of compiled kernels: where machine code is kept, and when it is made anew.

numba looks for changes in the kernel's own file only. So the name under which a kernel is kept ends
in a digest of the source files of all that it calls, and files of other digests are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import inspect
import linecache
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

import numba
import numpy as np

CACHE_VARIABLE = "EDL_KERNEL_CACHE"
IMAGE_VARIABLE = "EDL_IMAGE_KERNELS"  # the folder of an image, which brings some along
_PATIENCE_S = 60.0  # with one who compiles, or was stopped while it did
_PAUSE_S = 0.02


def keep_elsewhere(package: Path) -> None:
    """Keep machine code in EDL_KERNEL_CACHE's folder where `package` cannot be written.

    As in an image; else numba keeps it beside the sources, where it is found warm.
    """
    folder = os.environ.get(CACHE_VARIABLE)
    if folder and not os.access(package, os.W_OK):
        bring(Path(os.environ.get(IMAGE_VARIABLE) or folder), Path(folder))
        numba.config.CACHE_DIR = folder  # type: ignore[attr-defined]


def bring(source: Path, folder: Path) -> None:
    """Copy what an image holds compiled (`edl kernels`) to where more is kept.

    What is there already stays.
    """
    if source == folder:
        return
    files = [path for path in source.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: path.suffix):  # code (.nbc) before its index (.nbi)
        target = folder / path.relative_to(source)
        if target.exists():
            continue
        with contextlib.suppress(OSError):  # then it is compiled
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_suffix(f".{os.getpid()}-{uuid.uuid4().hex[:8]}")
            shutil.copyfile(path, partial)
            partial.replace(target)


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Let one process compile; the others, who wait here, then find its result in the cache."""
    path = Path(tempfile.gettempdir()) / f"edl-kernel-{os.getuid()}-{name}.lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:  # no place for it: then each compiles for itself
        yield
        return
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:  # there is no lock of files with a deadline
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_PAUSE_S)
        yield
    finally:
        os.close(lock)


def digest_of(function: FunctionType) -> str:
    """Return a digest of the source files of a kernel and of all functions that it calls.

    The numbers that they name are in it as well.
    """
    reached, open_ends, numbers = {function}, [function], set()
    while open_ends:
        for name, value in _named_in(open_ends.pop()):
            callee = inspect.unwrap(value) if callable(value) else None
            if isinstance(callee, FunctionType) and callee not in reached:
                reached.add(callee)
                open_ends.append(callee)
            elif isinstance(value, np.dtype):
                numbers.add(f"{name}={value.descr}")
            elif name and isinstance(value, (int, float, np.number)):
                numbers.add(f"{name}={value}")
    files = {each.__code__.co_filename: each.__globals__ for each in reached}
    sources = ("".join(linecache.getlines(file, files[file])) for file in sorted(files))
    return hashlib.sha256("\0".join([*sources, *sorted(numbers)]).encode()).hexdigest()[:16]


def _named_in(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the globals that a function and those inside it name, and its closure's values."""
    codes = [function.__code__]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                value = function.__globals__[name]
                yield name, value
                if isinstance(value, dict):  # of functions to choose from
                    for chosen in value.values():
                        for each in chosen if isinstance(chosen, tuple) else (chosen,):
                            yield "", each
    for cell in function.__closure__ or ():
        yield "", cell.cell_contents
