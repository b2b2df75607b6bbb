"""Make the peers' environments: `python -m benchmarks.peers.setup --into FOLDER [PEER ...]`.

Everything comes from PyPI; nothing of it is imported by, or a dependency of, the project. A peer
that cannot be had leaves the reason in FOLDER/PEER.failed, and the tables name it.

elasticdl   the wheel, unpacked: its Go server is all that is used
mxnet       a virtual environment with the numpy of its time
pslite      ps-lite's sources (and ZeroMQ's) as the source distribution of BytePS carries them,
            built here (C++ compiler, make), with pslite.cc
ray         a virtual environment
tensorflow  a virtual environment
torchft     a virtual environment, with the torch that the project uses
dlrover     a virtual environment

Plain torch, torch's RPC and gloo run in the project's own environment. About 4 GB in all.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

DEADLINE_S = 1800.0


class Failed(Exception):
    """A command failed; says which, and its last words."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.setup")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=", ".join(PEERS))
    given = parser.parse_args()
    for name in given.peers or PEERS:
        folder = given.into / name
        failed = given.into / f"{name}.failed"
        failed.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            PEERS[name](folder)
        except (Failed, OSError) as error:
            failed.write_text(f"{error}\n")
            shutil.rmtree(folder)
        print(f"{name}: {failed.read_text() if failed.exists() else 'ready'}", flush=True)


def elasticdl(folder: Path) -> None:
    with zipfile.ZipFile(_download("elasticdl==0.2.0rc3", folder)) as wheel:
        binary = Path(wheel.extract("elasticdl/go/bin/elasticdl_ps", folder))
    binary.chmod(0o755)
    binary.rename(folder / "elasticdl_ps")


def mxnet(folder: Path) -> None:
    _environment(folder, "mxnet==1.9.1", "numpy==1.23.5")
    _run([folder / "bin/python", "-c", "import mxnet"])


def pslite(folder: Path) -> None:
    with tarfile.open(_download("byteps==0.2.5.post15", folder, source=True)) as archive:
        archive.extractall(folder, filter="data")
    (sources,) = folder.glob("byteps-*")
    with tarfile.open(sources / "zeromq-4.1.4.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    zeromq, ps = folder / "zeromq-4.1.4", sources / "3rdparty/ps-lite"
    flags = {"CFLAGS": "-O2 -fPIC", "CXXFLAGS": "-O2 -fPIC -Wno-error"}
    without = ["--with-libsodium=no", "--without-docs", "--disable-shared"]
    _run([zeromq / "configure", f"--prefix={folder}/zmq", *without], zeromq, flags)
    _run(["make", f"-j{os.cpu_count()}", "install"], zeromq)
    _run(["make", "ps", f"DEPS_PATH={folder}/zmq"], ps)
    includes = [f"-I{ps}/include", f"-I{ps}/src", f"-I{folder}/zmq/include"]
    libraries = [ps / "build/libps.a", folder / "zmq/lib/libzmq.a", "-pthread", "-lrt"]
    program = Path(__file__).with_name("pslite.cc")
    flags_of_ours = ["-std=c++14", "-O3", "-march=native"]
    _run(["g++", *flags_of_ours, *includes, program, *libraries, "-o", folder / "pslite"])


def ray(folder: Path) -> None:
    _environment(folder, "ray==2.60.0", "torch==2.13.0", "numpy")


def tensorflow(folder: Path) -> None:
    _environment(folder, "tensorflow-cpu==2.21.0")


def torchft(folder: Path) -> None:
    _environment(folder, "torchft==0.2.0", "torch==2.13.0", "numpy")
    _run([folder / "bin/python", "-c", "import torchft"])


def dlrover(folder: Path) -> None:
    """Set up its task manager: what a master imports for it, without Kubernetes."""
    _environment(folder, "dlrover[k8s]==0.6.1", "protobuf")
    _run([folder / "bin/python", "-c", "import dlrover.python.master.shard.task_manager"])


PEERS: dict[str, Callable[[Path], None]] = {
    function.__name__: function
    for function in (elasticdl, mxnet, pslite, ray, tensorflow, torchft, dlrover)
}


def _environment(folder: Path, *packages: str) -> None:
    venv.create(folder, with_pip=True)
    _run([folder / "bin/python", "-m", "pip", "install", "--quiet", "psutil", *packages])


def _download(package: str, folder: Path, *, source: bool = False) -> Path:
    """Download the package's own file, without what it depends on."""
    into = folder / "download"
    kind = ["--no-binary", package.partition("==")[0]] if source else []
    _run([sys.executable, "-m", "pip", "download", "--no-deps", *kind, "--dest", into, package])
    (file,) = into.iterdir()
    return file


def _run(
    command: Sequence[str | Path], folder: Path | None = None, more: dict[str, str] | None = None
) -> None:
    words = list(map(str, command))
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **(more or {})},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise Failed(f"{' '.join(words)[:200]}: {' / '.join(last)}")


if __name__ == "__main__":
    main()
