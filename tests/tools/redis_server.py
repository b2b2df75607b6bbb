"""A real Redis server for a test; SERVER is None where there is none."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

SERVER = shutil.which("redis-server")


@contextlib.contextmanager
def redis_server(folder: str) -> Iterator[str]:
    """Start a server on a socket in this folder, whose path must be short; yield its URL."""
    assert SERVER is not None
    path = Path(folder) / "redis"
    arguments = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", folder]
    with subprocess.Popen([SERVER, *arguments], stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 60
            while not path.exists():
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.01)
            yield f"unix://{path}"
        finally:
            process.kill()
