"""Memory that two processes of a host share: one makes it, the other maps what it was sent."""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np
from numpy.typing import NDArray

from ..common.errors import EdlError

Bytes = NDArray[np.uint8]


def make_region(nbytes: int) -> tuple[int, Bytes]:
    """Make new memory to share: the descriptor, which the caller closes, and the bytes."""
    fd = os.memfd_create("edl-region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return fd, np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
    except OSError:
        os.close(fd)
        raise


def map_region(fd: int, nbytes: int) -> Bytes:
    """Map a peer's region.

    Raises EdlError unless it is, and stays, at least `nbytes` long.

    Without the seal the peer could shrink it, and touching it would end this process (SIGBUS).
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK or os.fstat(fd).st_size < nbytes:
            raise EdlError("a shared region must be sealed against shrinking, and long enough")
        return np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
    except OSError as error:
        raise EdlError(f"no shared region: {error}") from error
