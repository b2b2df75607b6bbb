"""Images without a registry: buildah with a store of its own, Debian's smallest system as a base.

Nothing here knows where this machine has its packages from: what pip is told here (`pip config
list`), it is told in builds, too, and the folders and files that are named in it are mounted there,
apart from where a package might write. None of that gets into an image.
"""

from __future__ import annotations

import ast
import configparser
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

# Builds run as root of this machine in a chroot: neither a registry nor a daemon is asked, and a
# sandbox in which cgroups cannot be made does as well.
_ISOLATION = "chroot"
_MOUNTS = Path("/mnt/pip")


class Store:
    """A store of images: `buildah` and all that it keeps, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        storage, containers = folder / "storage.conf", folder / "containers.conf"
        storage.write_text(
            f'[storage]\ndriver = "overlay"\n'
            f'graphroot = "{folder / "images"}"\nrunroot = "{folder / "run"}"\n'
        )
        mounts = [f"{source}:{target}:ro" for source, target in self._pip().items()]
        listed = ", ".join(f'"{mount}"' for mount in mounts)
        containers.write_text(f'[containers]\nnetns = "host"\nvolumes = [{listed}]\n')
        self.env = {
            **os.environ,
            "BUILDAH_ISOLATION": _ISOLATION,
            "CONTAINERS_STORAGE_CONF": str(storage),
            "CONTAINERS_CONF": str(containers),
            "TMPDIR": str(folder),  # layers in the making
        }

    def _pip(self) -> dict[Path, Path]:
        """Return what is mounted in builds for pip, from here to there."""
        settings = pip_settings()
        mounts = {path: _MOUNTS / str(n) for n, path in enumerate(named_paths(settings))}
        config = configparser.RawConfigParser()
        config["global"] = {key: _there(value, mounts) for key, value in settings.items()}
        file = self.folder / "pip.conf"
        with open(file, "w") as out:
            config.write(out)
        return {file: Path("/etc/pip.conf"), **mounts}

    def run(self, *arguments: str | Path) -> str:
        """Run `buildah ...`. Raises AssertionError with its last words where it fails."""
        return told(["buildah", *map(str, arguments)], self.env)

    def remove(self) -> None:
        """Remove the whole store.

        A build that failed leaves mounts behind, which are not to be emptied.
        """
        for mount in sorted(mounts_below(self.folder), reverse=True):
            subprocess.run(["umount", mount], check=True)
        shutil.rmtree(self.folder)


def told(command: list[str], env: Mapping[str, str]) -> str:
    """Run a command; return its standard output. Raises AssertionError with its last words."""
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False, text=True
    )
    said = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
    assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{said}"
    return done.stdout


def pip_settings() -> dict[str, str]:
    """Return what pip is told on this machine; the environment wins over files."""
    lines = told([sys.executable, "-m", "pip", "config", "list"], os.environ).splitlines()
    found: dict[str, str] = {}
    for line in sorted(lines, key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        found[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    return found


def named_paths(settings: Mapping[str, str]) -> list[Path]:
    """Return the files and folders of this machine that values speak of."""
    words = {word for value in settings.values() for word in value.split()}
    return sorted({path for word in words if (path := _mounted(word)) and path.exists()})


def _there(value: str, mounts: Mapping[Path, Path]) -> str:
    """Return `value` with the paths it has in a build, one word a line as pip's files have it."""
    words = []
    for word in value.split():
        if (path := _mounted(word)) is not None and path in mounts:
            word = word.replace(str(path), str(mounts[path]), 1)
        words.append(word)
    return "\n  ".join(words)


def _mounted(word: str) -> Path | None:
    """Return what has to be mounted for a word of pip's, None where it names no path.

    Of "/a/folder" itself, of "file:///an/index" what is around it: its files may lie beside it.
    """
    if word.startswith("file:///"):
        return Path(word.removeprefix("file://")).parent
    return Path(word) if word.startswith("/") else None


def mounts_below(folder: Path) -> Iterator[str]:
    for line in Path("/proc/mounts").read_text().splitlines():
        target = line.split()[1]
        if Path(target).is_relative_to(folder):
            yield target
