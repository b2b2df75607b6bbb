"""A real S3 server (moto's) in a process of its own, and the environment in which it is found."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from .own import free_port

_START_S = 60.0


@contextlib.contextmanager
def server(bucket: str) -> Iterator[dict[str, str]]:
    """Serve S3 with one bucket, empty; yield the variables by which all S3 clients find it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _make(f"{url}/{bucket}", process)
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        process.kill()
        process.wait()


def _make(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10):
                return
        except urllib.error.URLError:
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)


def python(code: str, variables: dict[str, str], *arguments: str) -> str:
    """Return what a program prints that runs with these variables: it keeps connections open.

    It may import the tests' tools.
    """
    tests = str(Path(__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": tests, **variables},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
