"""The folders of jobs on this machine, and whether one runs.

    $EDL_HOME (default ~/.edl)/
        jobs/<job_name>/      settings.json token lock master.json journal.sqlite result.json logs/
        old/<job_name>.<time> what a new job of the same name replaced

The lock decides: the command line takes it before it starts a master and leaves it to the master,
so that it is held exactly as long as the job runs, whatever kills whom, and two jobs of one name
cannot start. Only the owner may read a job's folder: it holds the job's token and environment.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

from .errors import UsageError
from .foreign import read_plain

HOME_VARIABLE = "EDL_HOME"
LOCK = "lock"  # which is held as long as the job runs
JOURNAL = "journal.sqlite"  # the master's books, in the job's folder
CHECKPOINTS = "checkpoints"  # in the job's folder, where no --checkpoint_dir is given
DESCRIBING = "describing"  # what the check of the definition does now, in words
COUNTING = "opening the data and counting its records"  # such words
STARTING = "starting"  # what a job that does not serve yet waits for, and how long by now
QUEUED = "queue.json"  # what a job asks of the scheduler that is to begin it
FAILED = "failed.json"  # the result of a job that goes on all the same, for a moment
_LEAST_NBYTES = 1 << 12  # a page: names alone find room on many a full disk
_ROOM_NBYTES = 1 << 20  # of a job's folder: a journal, logs, a status; a guess
_LOOKERS = 1000  # so many times one who looks may be met, and is gone


def home() -> Path:
    """Return the folder of all that edl keeps here. Raises UsageError where nobody knows it."""
    try:
        return Path(os.environ.get(HOME_VARIABLE) or "~/.edl").expanduser()
    except RuntimeError as error:  # a user without a name, in an environment without HOME
        raise UsageError(
            f"Nobody knows the home folder of this user: set {HOME_VARIABLE} to a folder."
        ) from error


def jobs_folder() -> Path:
    return home() / "jobs"


def job_folder(job_name: str) -> Path:
    return jobs_folder() / job_name


def job_folders() -> list[Path]:
    """Return the folders of all jobs, by name; one whose name begins with a dot is no job's."""
    try:
        there = sorted(jobs_folder().iterdir())
    except FileNotFoundError:
        return []
    return [each for each in there if not each.name.startswith(".") and each.is_dir()]


def named_job(name: str) -> Path | None:
    """Return the folder of the job of that name; None where there is none.

    `./NAME` is never a job.
    """
    folder = jobs_folder() / name
    plain = bool(name) and "/" not in name and not name.startswith(".")
    return folder if plain and folder.is_dir() else None


def why_unwritable(folder: str | Path, nbytes: int = _LEAST_NBYTES) -> str:
    """Return what keeps one from writing so much in this folder; "" where nothing does.

    The folder need not exist yet.

    It is tried: rights alone say nothing about /proc, a full disk or root.
    """
    there = Path(folder)
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        return f"{there} is a file, so that {folder} cannot be a folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written"
    try:
        with tempfile.TemporaryDirectory(prefix=".edl-", dir=there) as made:
            (Path(made) / "file").write_bytes(bytes(nbytes))
    except OSError as error:
        return f"{there} cannot be written ({error.strerror})"
    return ""


def check_file(path: str, said: str) -> None:
    """Check, before the work whose result goes there, that it can be written. Raises UsageError."""
    if not path:
        return
    if os.path.isdir(path):
        raise UsageError(f"{said}: {path} is a folder: name a file.")
    if why := why_unwritable(Path(path).absolute().parent):
        raise UsageError(f"{said}: {why}: choose another place.")
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise UsageError(f"{said}: {path} cannot be written: choose another file.")


def master_address(folder: Path | str) -> str | None:
    """Return where the master of the job in this folder serves; None: none has said so yet.

    The file is replaced as a whole, whenever a master begins to serve.
    """
    try:
        return str(json.loads(read_plain(Path(folder) / "master.json"))["address"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        path = Path(folder) / "master.json"
        raise UsageError(f"{path} says no address of a master: {error!r}.") from error


def waited_for(folder: Path) -> str:
    """Return what a job that starts has waited for, for long; "" where it has not."""
    try:
        return (folder / STARTING).read_text(encoding="utf-8")
    except OSError:
        return ""


def told_at(folder: Path) -> float:
    """Return when the master wrote its address, in seconds of the epoch; 0.0: it has not."""
    try:
        return (folder / "master.json").stat().st_mtime
    except FileNotFoundError:
        return 0.0


def is_locked(folder: Path) -> bool:
    """Return whether a job runs (or starts) in this folder."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def can_go_on(folder: Path) -> bool:
    """Return whether a job here has begun, and has no end or one that its journal goes on from."""
    if not (folder / JOURNAL).exists():
        return False
    try:
        resume = json.loads(read_plain(folder / "result.json")).get("resume")
    except FileNotFoundError:
        return True
    except (ValueError, AttributeError) as error:
        path = folder / "result.json"
        raise UsageError(f"{path} is no result of a job: {error}.") from error
    return bool(resume) and Path(resume).resolve() == folder.resolve()


def stands(folder: Path) -> bool:
    """Tell whether the folder has a job that can go on, and that nobody runs.

    It failed, or master and supervisor were killed together, or the machine was booted anew.
    """
    return can_go_on(folder) and not is_locked(folder)


def is_queued(folder: Path) -> bool:
    """Tell whether the job here waits for a scheduler: it has not begun, and was not taken back."""
    begun = any((folder / name).exists() for name in (JOURNAL, "master.json", "result.json"))
    return (folder / QUEUED).exists() and not begun and not is_locked(folder)


def put_aside_failure(folder: Path) -> None:
    """Put aside how a job had ended, for it goes on.

    That is FAILED until its master has noted it.
    """
    with contextlib.suppress(FileNotFoundError):
        (folder / "result.json").replace(folder / FAILED)


def running_jobs() -> list[Path]:
    """Return the folders of the jobs that run (or start) and have written their settings."""
    return [each for each in job_folders() if (each / "settings.json").exists() and is_locked(each)]


def wait_until_unlocked(folder: Path) -> None:
    """Wait until no job runs in this folder any more."""
    with open(folder / LOCK) as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def check_room() -> None:
    """Check that a job's folder can be written. Raises UsageError.

    On a full disk a master could not even say why it ends.
    """
    if why := why_unwritable(jobs_folder(), _ROOM_NBYTES):
        raise UsageError(
            f"The jobs' folder {jobs_folder()}: {why}. Set {HOME_VARIABLE} to a folder that can be "
            "written, or make room there."
        )


def claim(job_name: str) -> tuple[Path, int]:
    """Make a new, empty folder for a job, and lock it; return both.

    The lock's descriptor is to be left to the master.

    The folder of an ended job of that name is kept under old/. Raises UsageError where one runs,
    and where there is no room.
    """
    check_room()
    folder = job_folder(job_name)
    running = UsageError(
        f"A job named {job_name!r} is running already: choose another --job_name, watch it with "
        f"`edl status {job_name}`, or end it with `edl stop {job_name}`."
    )
    with contextlib.ExitStack() as undo:
        try:
            jobs_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
            # Made and locked under a name that is no job's: who looks sees none, or one that runs.
            made = Path(tempfile.mkdtemp(prefix=".claim-", dir=jobs_folder()))
            undo.callback(shutil.rmtree, made, ignore_errors=True)
            (made / "logs").mkdir()
            descriptor = lock(made)
            undo.callback(os.close, descriptor)
            if folder.exists():
                if is_locked(folder):
                    raise running
                old = home() / "old"
                old.mkdir(parents=True, exist_ok=True, mode=0o700)
                folder.rename(old / f"{job_name}.{time.time_ns() // 1_000_000}")
            made.rename(folder)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise running from error
            raise UsageError(
                f"Cannot make the job's folder {folder}: {error.strerror}. Set {HOME_VARIABLE} to "
                "a folder that can be written."
            ) from error
        undo.pop_all()
    return folder, descriptor


def lock(folder: Path) -> int:
    """Lock a job's folder; return the descriptor.

    Raises BlockingIOError where another has the lock; who only looks whether one has it does not
    count.
    """
    with contextlib.ExitStack() as undo:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        undo.callback(os.close, descriptor)
        for left in range(_LOOKERS, -1, -1):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not left:
                    raise
            # A job would refuse this too; one who looks (`is_locked`) is gone in a moment.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.sched_yield()
        undo.pop_all()
    return descriptor
