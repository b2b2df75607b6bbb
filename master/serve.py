"""The master as a process: its parts put together, its end put on disk.

The job's token comes in EDL_TOKEN, its certificate, where it has one, in EDL_IDENTITY. First
`edl.worker --describe` checks the definition and counts the data, in a process of its own, so that
no user code ever runs here. DIR/master.json says where the master serves; DIR/result.json is the
last status.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..common import finite, paths, rpc, storage
from ..common import log as logs
from ..common.claims import folders
from ..common.clock import MonotonicClock
from ..common.errors import EdlError, Fenced
from ..common.files import no_room
from ..common.foreign import parse, read_plain
from ..common.identity import job_identity
from ..common.listen import own_host
from ..common.process import is_starved
from ..common.reflection import reflect
from ..common.settings import JobSettings
from ..durable.schema import Json
from ..jobs import notes
from ..jobs.claims import Claims
from ..jobs.history import History
from ..proto import master_pb2, master_pb2_grpc, registry_pb2, registry_pb2_grpc
from ..runtime.nursery import Nursery
from . import opening, owning
from .core import EXIT_FAILED, MEMORY
from .describe import describe
from .groups.servers import RemoteServers
from .home import Home, LocalHome, PodHome
from .master import Master
from .scalars import Scalars
from .servicer import MasterServicer, TeachersServicer

log = logging.getLogger("edl.master")


def serve(
    job_dir: Path,
    after: str = "",
    stop: str = "",
    told: Path | None = None,
    checked: Path | None = None,
    nursery: Nursery | None = None,
) -> int:
    """Run the job; returns its exit code.

    `after`: how the master before this one ended. `stop`: why the job is to be stopped at once.
    `told`: the folder with its settings where this is a pod, whose job folder is empty at first.
    `checked`: where the definition was checked before (check.py). `nursery`: one that was begun
    before.
    """
    logs.configure(role="master")
    seldom_collect_garbage()
    try:
        settings = JobSettings.of_job(told or job_dir)
        logs.configure(settings.log_level, settings.log_format, "master")
        if settings.runtime == "kubernetes":
            return _serve_in_pod(settings, job_dir, after, checked)
        return run(
            settings,
            job_dir,
            functools.partial(LocalHome, job_dir),
            after,
            stop,
            nursery=nursery,
        )
    except EdlError as error:
        print(f"edl: error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if not (why := no_room(error, job_dir)):
            raise
        with contextlib.suppress(OSError):  # the log may lie on that disk too
            print(f"edl: error: {why}", file=sys.stderr)
        return EXIT_FAILED


def seldom_collect_garbage() -> None:
    """Look for circles of objects seldom.

    The books make none, and have a hundred thousand objects to look through, which took most of the
    time of a compaction and of a restart.
    """
    gc.set_threshold(100_000, 50, 50)


def _serve_in_pod(settings: JobSettings, job_dir: Path, after: str, checked: Path | None) -> int:
    """Run the job as the one master among the pods that may try."""
    from ..k8s.home import Home as Pod

    pod = Pod(settings)

    def run_it() -> tuple[int, str]:
        code = run(settings, job_dir, functools.partial(PodHome, pod), after, checked=checked)
        begun = checked is not None or (job_dir / "result.json").exists()
        return code, "" if begun else _last_words(job_dir / "logs" / "describe.log")

    return pod.live(job_dir, run_it)


def _last_words(log: Path) -> str:
    words = log.read_text(errors="replace").strip()
    return words.rpartition("\n")[2].removeprefix("edl: error: ")


def run(
    settings: JobSettings,
    job_dir: Path,
    make_home: Callable[[Nursery | None], Home],
    after: str,
    stop: str = "",
    checked: Path | None = None,
    nursery: Nursery | None = None,
) -> int:
    """Run the whole job; returns its exit code. Raises EdlError where it cannot even begin.

    `make_home` gives the place where the master lives, whose nursery this is, where there is one.
    """
    # Now, since counting the records may take minutes.
    token = rpc.job_token()
    job_identity(token).encrypts(own_host())
    health = rpc.serve_health()
    if checked is None and nursery is None:
        nursery = Nursery.of_job(settings, job_dir)
    home = make_home(nursery)
    claims = Claims()
    try:
        books = opening.resume(settings, job_dir)
        owner = _owner(settings, token, books)
        places = folders(dataclasses.asdict(settings))
        claims = Claims.of_job(places, settings.job_name, job_dir, owner, token)
        claims.take(job_dir, has_begun=books is not None)
        if books is None:
            described, code = _describe(settings, job_dir, nursery, checked)
            if described is None:
                return code
            books = opening.begin(settings, job_dir, described)
            owning.remembered(books.journal, lambda: owner)
        return _run(books.settings(settings), job_dir, books, home, claims, after, stop)
    finally:
        claims.close()
        if nursery is not None:
            nursery.close()
        if health is not None:
            health.stop(0)


def _owner(settings: JobSettings, token: str, books: opening.Books | None) -> str:
    """Return the job's name as the owner of folders, which the journal has once there is one."""
    if books is None:
        return owning.named(settings, token)
    return owning.remembered(books.journal, lambda: owning.named(settings, token))


def _describe(
    settings: JobSettings, job_dir: Path, nursery: Nursery | None, checked: Path | None
) -> tuple[dict[str, Any] | None, int]:
    """Return what is known of definition and data, or None and the exit code: it was told why."""
    if nursery is not None:
        return describe(settings, job_dir, nursery)
    assert checked is not None
    from ..k8s import check

    kept = job_dir / "describe.json"
    if not (checked / check.RESULT).exists() and kept.exists():
        # A master before has read the check, and was killed before it began its journal.
        return dict(parse(read_plain(kept))), 0
    described = check.read(checked)
    storage.write_file(kept, json.dumps(described).encode())
    return described, 0


def _run(
    settings: JobSettings,
    job_dir: Path,
    books: opening.Books,
    home: Home,
    claims: Claims,
    after: str,
    stop: str,
) -> int:
    journal = books.journal
    tensorboard = settings.output and settings.tensorboard and "tensorboard" not in settings.loggers
    scalars = Scalars(Path(settings.output) / "tensorboard" if tensorboard else None)
    history = History(job_dir)
    identity = job_identity(rpc.job_token())

    def show(status: dict[str, Json]) -> None:
        scalars(status)
        history.look(status)
        home.show(status)
        for note in notes.take(job_dir) if settings.logger else ():
            master.core.tell(note, kind="logger")

    master = Master(
        settings=settings,
        job_dir=job_dir,
        books=books,
        connect=lambda addresses: RemoteServers(addresses, identity.token, journal.epoch),
        clock=MonotonicClock(),
        identity=identity,
        watch=show,
        claims=claims,
    )
    master.status.hear = history.event
    _go_on(master, job_dir, books, after)
    server = _listen(master, identity.token, settings.port, job_dir)
    metrics_address = scalars.serve()
    home.serve(master)
    about = {"address": server.address, "pid": os.getpid(), "metrics_address": metrics_address}
    about |= {"epoch": journal.epoch}
    storage.write_file(job_dir / "master.json", json.dumps(about).encode())
    log.info("serving address=%s metrics=%s", server.address, metrics_address)
    if stop:
        master.front.stop(stop)
    try:
        code = master.run(lambda report: home.start_runtime(report, server.address))
    except Fenced:
        raise  # there is another master: the job, its status and its journal are that one's
    except BaseException as error:  # however it ended, the last status is left; then it goes on up
        if not is_starved(error):  # then another master goes on
            _leave_result(master, job_dir, scalars, history)
        raise
    else:
        _leave_result(master, job_dir, scalars, history)
    finally:
        server.stop()
        journal.close()
        history.close()
    return code


def _go_on(master: Master, job_dir: Path, books: opening.Books, after: str) -> None:
    """Have the master go on where the one before ended, if there was one. `after`: how it did."""
    memory = books.journal.get(MEMORY)
    if memory is None:
        for note in books.notes:
            master.core.tell(note)
        return
    failed = job_dir / paths.FAILED
    why = json.loads(failed.read_bytes())["message"] if failed.exists() else None
    try:
        master.resume(after, memory, why)
    except opening.UNREADABLE as error:
        raise opening.not_of_this_version(job_dir, error) from error
    failed.unlink(missing_ok=True)


def _leave_result(master: Master, job_dir: Path, scalars: Scalars, history: History) -> None:
    text = master.status_json()
    storage.write_file(job_dir / "result.json", text.encode())
    status = finite.loads(text)
    scalars(status, last=True)
    scalars.close()
    history.look(status, last=True)


def _listen(master: Master, token: str, port: int, job_dir: Path) -> rpc.AsyncServer:
    """Serve at `port`; 0: where the master before did, if it may be, so that nobody has to look."""

    def register(server: Any) -> None:
        master_pb2_grpc.add_MasterServicer_to_server(MasterServicer(master), server)
        teachers = TeachersServicer(master, master.core.settings.lease_s)
        registry_pb2_grpc.add_RegistryServicer_to_server(teachers, server)
        reflect(server, master_pb2, registry_pb2)

    def listen(port: int) -> rpc.AsyncServer:
        return rpc.AsyncServer(register, token=token, port=port)

    before = paths.master_address(job_dir)
    if before is None:
        return listen(port)
    try:
        return listen(port or int(before.rpartition(":")[2]))
    except EdlError:  # a master that sleeps may hold it yet
        return listen(0)
