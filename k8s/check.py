"""The check of a definition, apart from the master.

It is run by `python -m edl.k8s.check SETTINGS INTO JOB OWNER`.

In a pod whose master has a token, the user's code runs in a container before the master's, which
has none. That one runs this: `edl.worker --describe` (`edl.launch --describe` for a script) as a
process of its own, and how it ended as one file in INTO, which `read` reads on the master's side.
All that lies there may be anything: the user's code could write it too.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from .. import __version__
from ..common import launched, storage
from ..common.errors import EdlError, JobError, UsageError
from ..common.process import end_at_sigterm, end_with

RESULT = "checked.json"
OUT_OF_MEMORY = 137  # what a container ends with whose process the kernel kills
_CHECK_S = 3600.0  # counting the records of very large text files takes minutes
_LONGEST = 64 << 20  # bytes of a result: some hundred thousand files
_WORDS = 4000  # characters of what it said that a message keeps


class CheckFailed(EdlError):
    """The error of a check that has said why, and ended with this code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def main(arguments: list[str]) -> int:
    """Run the check; returns 0 where anything is told.

    137 where it was killed, as by the kernel for want of memory.
    """
    end_at_sigterm()
    told, into, job_dir, owner = arguments
    if _is_begun(Path(job_dir), owner):
        return 0  # the master reads the journal
    shutil.copy(Path(told) / "settings.json", Path(into) / "settings.json")
    told_by = json.loads((Path(into) / "settings.json").read_text())
    module = "edl.launch" if told_by.get("command") == launched.COMMAND else "edl.worker"
    command = [sys.executable, "-m", module, "--describe", "--job-dir", into]
    # The job's own folder is the master's to write: an index made here is not the job's.
    environment = {**os.environ, "EDL_JOB_DIR": into}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output, _ = process.communicate(timeout=_CHECK_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        output += f"\nthe data could not be counted within {_CHECK_S:.0f} s".encode()
    said = output.decode(errors="replace").strip()
    print(said, file=sys.stderr, flush=True)
    code = process.returncode
    if code == -signal.SIGKILL:
        return OUT_OF_MEMORY
    described = Path(into) / "describe.json"
    result = {"version": __version__, "code": code, "said": said[-_WORDS:]}
    if code == 0 and described.exists():
        result["described"] = json.loads(described.read_text())
    storage.write_file(Path(into) / RESULT, json.dumps(result).encode())
    return 0


def _is_begun(job_dir: Path, owner: str) -> bool:
    """Tell whether a master of this very job has read a check before."""
    try:
        mine = (job_dir / "owner").read_text() == owner
    except OSError:
        return False
    return mine and (job_dir / "describe.json").exists()


def read(folder: Path) -> dict[str, Any]:
    """Return what definition and data are.

    Raises CheckFailed, JobError, and UsageError where the images differ.
    """
    found = _result(folder / RESULT)
    if found.get("version") != __version__:
        raise UsageError(
            f"The EdlJob's image holds edl {found.get('version')}, the controller's is edl "
            f"{__version__}: build the image on top of edl:{__version__} (`edl zoo build`)."
        )
    code, said = int(found.get("code", 1)), str(found.get("said", ""))
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        raise JobError(f"the check of the definition was killed by {name}{_last(said)}")
    if code > 0:
        raise CheckFailed(said.rpartition("\n")[2].removeprefix("edl: error: "), code)
    described = found.get("described")
    if not isinstance(described, dict):
        raise JobError(
            "the check of the definition ended before it was over, without an error: the "
            f"definition ends its process (sys.exit, os._exit){_last(said)}"
        )
    return described


def _last(said: str) -> str:
    line = said.rpartition("\n")[2]
    return f" (its last words: {line})" if line else ""


def _result(path: Path) -> dict[str, Any]:
    """Return the content of the result's file, if it is one.

    A link might lead to what only the master may read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_size > _LONGEST:
                raise ValueError("no plain file of a sensible size")
            return dict(json.loads(file.read(_LONGEST)))
    except (OSError, TypeError, ValueError) as error:
        raise JobError(
            "the check of the definition has left nothing that can be read "
            f"({type(error).__name__})"
        ) from error


if __name__ == "__main__":
    end_with(lambda: main(sys.argv[1:]))
