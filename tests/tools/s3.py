"""An S3 server in a process of its own, and the environment in which its clients find it.

The real one is versitygw, out of an archive that CI has beside the checkout: unlike a mock it
checks signatures and answers conditional writes as S3 does. It is unpacked once for a machine;
each server has a port, a folder for its objects and a secret of its own, so that many run side by
side, and ends with the process that started it, however that ends. Where the archive is not there
moto, a mock, is served.

    S3_SERVER    a versitygw-*-linux-amd64.tar.zst; without it, one in ../shared/s3
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .own import free_port

REAL, MOCK = "versitygw", "moto"
_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "s3"
LACKING = (
    "there is no real S3 server: name a versitygw-*-linux-amd64.tar.zst by S3_SERVER, or put one "
    "into ../shared/s3, beside the checkout"
)
_START_S = 60.0
_REGION = "us-east-1"


class _EndedError(Exception):
    """A server has ended before it could be asked: its port was taken meanwhile, say."""


def archive() -> Path | None:
    """Return the archive of the real server; None where there is none for this machine."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    named = os.environ.get("S3_SERVER")
    found = [Path(named)] if named else sorted(_BESIDE.glob("versitygw-*-linux-amd64.tar.zst"))
    return found[-1] if found else None


def both() -> list[object]:
    """Return both servers as parameters of a test; without the archive the real one is skipped."""
    lacks = pytest.mark.skipif(archive() is None, reason=LACKING)
    return [pytest.param(REAL, marks=lacks), MOCK]


@contextlib.contextmanager
def server(bucket: str, kind: str | None = None) -> Iterator[dict[str, str]]:
    """Serve S3 with one bucket, empty; yield the variables by which all S3 clients find it.

    `kind`: REAL or MOCK; None: the real one where it is there. A bucket's name has three letters
    at least.
    """
    kind = kind or (MOCK if archive() is None else REAL)
    with contextlib.ExitStack() as own:
        folder = Path(own.enter_context(tempfile.TemporaryDirectory(prefix="edl-s3-")))
        while True:
            variables = {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
                "AWS_ACCESS_KEY_ID": "keykey",
                # Others who serve by this port do not know it.
                "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16),
                "AWS_DEFAULT_REGION": _REGION,
            }
            with contextlib.suppress(_EndedError), _running(kind, variables, folder) as process:
                _make(bucket, variables, process, folder)
                yield variables
                return
            # A port may have been taken since it was found free; all else is said.
            log = (folder / "log").read_text()
            assert "address already in use" in log.lower(), f"{kind} has ended:\n{log}"


@contextlib.contextmanager
def _running(
    kind: str, variables: dict[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    address = variables["AWS_ENDPOINT_URL"].removeprefix("http://")
    if kind == REAL:
        data = folder / "data"
        data.mkdir(exist_ok=True)
        # --keep-alive: as S3 does; by default each request needs a connection of its own
        options = ["--port", address, "--region", _REGION, "--keep-alive", "--quiet"]
        command = [str(_program()), *options, "posix", str(data)]
    else:
        host, _, port = address.partition(":")
        command = [sys.executable, "-m", "moto.server", "-H", host, "-p", port]
    if shutil.which("setpriv"):  # Linux
        command = ["setpriv", "--pdeathsig", "KILL", *command]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command,
            env={
                **os.environ,
                "ROOT_ACCESS_KEY": variables["AWS_ACCESS_KEY_ID"],
                "ROOT_SECRET_KEY": variables["AWS_SECRET_ACCESS_KEY"],
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _program() -> Path:
    """Return the server's program, unpacked once for a machine: written aside and renamed."""
    packed = archive()
    assert packed is not None, f"there is no archive of {REAL}; see tests/tools/s3.py"
    digest = hashlib.sha256(packed.read_bytes()).hexdigest()[:16]
    # where tests/k8s/cluster has its own, too
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "edl"
    program = cache / f"{packed.name.removesuffix('.tar.zst')}-{digest}"
    if program.exists():
        return program
    import pyarrow  # so that no `zstd` is needed

    program.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=program.parent) as aside,
        pyarrow.input_stream(str(packed), compression="zstd") as plain,
        tarfile.open(fileobj=plain, mode="r|") as files,
    ):
        files.extractall(aside, filter="data")
        os.replace(Path(aside) / REAL, program)
    return program


def client(variables: dict[str, str]) -> contextlib.closing[Any]:
    """Return boto3's client of a server, to be closed by `with`; it tries nothing twice."""
    import boto3
    from botocore.config import Config

    made = boto3.client(
        "s3",
        endpoint_url=variables["AWS_ENDPOINT_URL"],
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        region_name=variables["AWS_DEFAULT_REGION"],
        config=Config(
            retries={"total_max_attempts": 1},
            connect_timeout=_START_S,
            read_timeout=_START_S,
            proxies={},
        ),
    )
    return contextlib.closing(made)


def _make(
    bucket: str, variables: dict[str, str], process: subprocess.Popen[bytes], folder: Path
) -> None:
    """Make the bucket, as soon as the server answers. Raises _EndedError."""
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

    deadline = time.monotonic() + _START_S
    with client(variables) as s3:
        while True:
            try:
                s3.create_bucket(Bucket=bucket)
                made = True
            except (ConnectionError, HTTPClientError):
                made = False
            except ClientError as error:
                # Another server has taken this port, and asks whose secret that is.
                if error.response["Error"]["Code"] != "SignatureDoesNotMatch":
                    raise
                made = False
            if process.poll() is not None:
                raise _EndedError
            if made:
                return
            log = (folder / "log").read_text()
            assert time.monotonic() < deadline, f"the server does not answer:\n{log}"
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
