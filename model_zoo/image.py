"""`edl zoo build` and `edl zoo push`: a container image that holds one's own definitions.

The image is edl's own (or another that has edl in it) with the folder's requirements installed and
the folder at /model_zoo. A folder with a Dockerfile of its own is built by that one. The work is
docker's or buildah's, in this order, the first that is there and answers; what it prints is shown
as it comes.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import urllib.parse
from pathlib import Path

from .. import __version__
from ..common.errors import ImageError, UsageError

BASE_IMAGE = f"edl:{__version__}"
_TEMPLATE = Path(__file__).parent / "templates" / "Dockerfile.txt"
# Program -> arguments that succeed if and only if it can build. `docker` is a client, which is of
# no use without its engine; `buildah` works by itself.
_PROBES = {"docker": ["version", "--format", "{{.Server.Version}}"], "buildah": ["version"]}
_PROBE_S = 30.0  # an engine of a sleeping virtual machine takes seconds to answer; a guess


def find_engine() -> str:
    """Return the path of docker or buildah, whichever can build.

    Raises ImageError where none can.
    """
    silent: dict[str, str] = {}
    for name, probe in _PROBES.items():
        program = shutil.which(name)
        if program is None:
            continue
        why = _why_not(program, probe)
        if not why:
            return program
        silent[name] = why
    if not silent:
        raise ImageError(
            "An image needs docker or buildah, and neither is on PATH: install one "
            "(buildah needs no engine and no root), or run this where one is."
        )
    told = "; ".join(f"{name} is installed but does not answer ({silent[name]})" for name in silent)
    other = "" if "buildah" in silent else ", or install buildah, which needs none"
    raise ImageError(f"{told}. Start the engine{other}.")


def _why_not(program: str, probe: list[str]) -> str:
    """Return why a program cannot build, in its own last line; "" if it can."""
    try:
        tried = subprocess.run(
            [program, *probe],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_S,
        )
    except subprocess.TimeoutExpired:
        return f"nothing for {_PROBE_S:g} s"
    except OSError as error:
        return str(error)
    if tried.returncode == 0:
        return ""
    said = tried.stderr.decode(errors="replace").strip() or f"exit code {tried.returncode}"
    return said.splitlines()[-1].rstrip(".")


def dockerfile(folder: Path, base_image: str = "", extra_pypi_index: str = "") -> str:
    """Return the Dockerfile of a folder of definitions.

    It is its own where it has one, else one made for it.

    Raises UsageError where there is nothing to build or an argument does not fit.
    """
    if not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is no folder; `edl zoo init` makes one.")
    own = folder / "Dockerfile"
    if own.is_file():
        if base_image or extra_pypi_index:
            raise UsageError(
                f"{own} is built as it is: --base_image and --extra_pypi_index belong into it."
            )
        return own.read_text(encoding="utf-8")
    if not any(folder.rglob("*.py")):
        raise UsageError(f"There is no definition in {str(folder)!r}; `edl zoo init` makes one.")
    index = _index_option(extra_pypi_index)
    requirements = ""
    if (folder / "requirements.txt").is_file():
        requirements = (
            "COPY requirements.txt /tmp/requirements.txt\n"
            f"RUN pip install --no-cache-dir{index} --requirement /tmp/requirements.txt\n"
        )
    elif index:
        raise UsageError(
            f"--extra_pypi_index says where requirements come from, but {str(folder)!r} has no "
            "requirements.txt."
        )
    base = _one_word(base_image or BASE_IMAGE, "--base_image")
    text = _TEMPLATE.read_text(encoding="utf-8")
    return text.replace("{base_image}", base).replace("{requirements}", requirements)


def _index_option(url: str) -> str:
    """Return pip's option for one more index, "" for none."""
    if not url:
        return ""
    parts = urllib.parse.urlsplit(_one_word(url, "--extra_pypi_index"))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--extra_pypi_index is no URL of http or https: {url!r}.")
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "--extra_pypi_index holds a password, which would stay readable in the image: put the "
            "index into pip's configuration of the base image."
        )
    return f" --extra-index-url {url}"


def _one_word(text: str, what: str) -> str:
    """Return `text`, which becomes part of a line or an argument of its own and must stay that."""
    if (
        not text
        or text.startswith("-")
        or any(not c.isprintable() or c in " \"'\\$`" for c in text)
    ):
        raise UsageError(f"{what} is no name that can be used here: {text!r}.")
    return text


def build(folder: Path, image: str, base_image: str = "", extra_pypi_index: str = "") -> None:
    """Build the image `image` of a folder of definitions.

    Raises UsageError for what cannot be built, ImageError where nothing can build or it failed.
    """
    _one_word(image, "--image")
    text = dockerfile(folder, base_image, extra_pypi_index)
    engine = find_engine()
    with tempfile.TemporaryDirectory(prefix="edl-image-") as temporary:
        file = Path(temporary) / "Dockerfile"  # not in the folder, which is the user's
        file.write_text(text, encoding="utf-8")
        _run([engine, "build", "--file", str(file), "--tag", image, str(folder)])


def push(image: str) -> None:
    """Push an image to its registry, with the login that docker or buildah has."""
    _one_word(image, "The image")
    _run([find_engine(), "push", image])


def _run(command: list[str]) -> None:
    """Run a command to its end, however long: its progress is on the screen, Ctrl-C ends it."""
    code = subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode
    if code:
        what = " ".join((Path(command[0]).name, command[1]))
        raise ImageError(f"`{what}` failed with exit code {code}; what it printed says why.")
