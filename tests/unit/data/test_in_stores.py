"""Data in a store of objects: keys as people have them, and a store that does not answer."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tools.stores import clear_memory

from edl.common import stores
from edl.common.errors import DataError
from edl.data import files, paths

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def bucket() -> Iterator[MemoryFileSystem]:
    clear_memory()
    fs = MemoryFileSystem()
    fs.pipe_file("/bucket/day/a.csv", b"x\n1\n")
    yield fs
    clear_memory()


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Have stores waited for for a moment; the event ends what hangs."""
    brief = functools.partial(stores.awaited, quiet_s=0.01, most_s=0.05)
    monkeypatch.setattr(paths, "awaited", brief)
    monkeypatch.setattr(files, "awaited", brief)
    event = threading.Event()
    yield event
    event.set()


def test_keys_with_an_empty_part_are_data_and_hidden_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As s3fs lists them; this file system itself has no such names.
    keys = ["/bucket/day//a.csv", "/bucket/day/.tmp/b.csv", "/bucket/day/_SUCCESS", "/bucket/c.csv"]
    monkeypatch.setattr(
        MemoryFileSystem, "find", lambda *_, **__: {key: {"type": "file"} for key in keys}
    )

    found = [file.path for file in paths.expand("memory://bucket")]

    assert ["/bucket/c.csv", "/bucket/day//a.csv"] == found


@pytest.mark.parametrize("call", ["isfile", "find"])
def test_a_store_that_hangs_at_the_start_is_named_and_waited_for_until_a_deadline(
    call: str,
    silence: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(MemoryFileSystem, call, lambda *_, **__: silence.wait() and False)

    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(DataError, match="^memory://bucket cannot be opened: its store has not"),
    ):
        paths.expand("memory://bucket")

    assert "memory://bucket is not opened after 0 s: waiting for its store." in caplog.text


def test_a_store_that_hangs_at_a_file_is_named(
    silence: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = paths.expand("memory://bucket")
    monkeypatch.setattr(MemoryFileSystem, "info", lambda *_, **__: silence.wait() and {})

    with pytest.raises(DataError, match="bucket/day/a.csv .*its store has not answered"):
        file.nbytes()


def test_what_a_store_says_itself_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise TimeoutError("read timed out")

    monkeypatch.setattr(MemoryFileSystem, "isfile", refuse)

    with pytest.raises(DataError, match="memory://bucket cannot be opened: read timed out"):
        paths.expand("memory://bucket")
