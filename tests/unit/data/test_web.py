"""Data over HTTP goes by way of a proxy where the environment names one."""

import importlib

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from edl.data.paths import _file_system


class Web(MemoryFileSystem):
    """A file system that notes what it was made with; the real one gives that to aiohttp."""

    cachable = False
    protocol = ("http", "https")

    def __init__(self, **options):
        super().__init__()
        self.options = options


@pytest.mark.parametrize(
    "path", ["http://host/data.csv", "https://host/data.csv", "simplecache::http://host/data.csv"]
)
def test_the_environments_proxy_is_obeyed(monkeypatch, path):
    for name in ("http", "https"):
        monkeypatch.setitem(importlib.import_module("fsspec.registry")._registry, name, Web)

    fs, _ = _file_system(path)

    fs = getattr(fs, "fs", fs)
    assert {"trust_env": True} == fs.options["client_kwargs"]


def test_other_file_systems_are_told_nothing_of_it():
    fs, inner = _file_system("memory://data.csv")

    assert ("/data.csv", {}) == (inner, fs.storage_options)
