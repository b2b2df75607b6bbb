"""The master as a process: its parts put together, its end put on disk.

The job's token comes in EDL_TOKEN, its certificate, where it has one, in EDL_IDENTITY. First
`edl.worker --describe` checks the definition and counts the data, in a process of its own, so that no
user code ever runs here. DIR/master.json says where the master serves; DIR/result.json is the last
status.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common import log as logs
from ..common import paths, rpc, storage
from ..common.clock import MonotonicClock
from ..common.errors import CheckpointError, EdlError, Fenced, JobError, PeerError, UsageError
from ..common.foreign import must_be, parse, read_plain
from ..common.identity import job_identity
from ..common.listen import own_host
from ..common.process import STACK_SIGNAL
from ..common.settings import JobSettings
from ..durable.journal import Journal
from ..proto import master_pb2 as pb
from ..proto import master_pb2_grpc
from ..runtime.base import OnReport, Runtime
from ..runtime.local import LocalRuntime
from ..runtime.nursery import ForkedReplica, Nursery
from . import check
from .core import EXIT_INTERRUPTED, MEMORY
from .judge import Judges, judges_of
from .master import Master
from .plan import Plan, check_same_plan, cut, plan_of, sources_of
from .replicas import describe_end
from .scalars import Scalars
from .servers import RemoteServers
from .servicer import MasterServicer
from .state import FORMAT, dump_queue, restore
from .task_queue import TaskQueue

if TYPE_CHECKING:
    from ..k8s.home import Home

log = logging.getLogger("edl.master")

_SAY_S = 30.0  # between two lines of what a start waits for
_IMPORT_S = 1800.0  # our own imports and torch's, from a network's disk: no code of the user's
_STACK_S = 1.0  # it is written by then
_DESCRIBE_S = 3600.0  # counting the records of very large text files takes minutes


def serve(
    job_dir: Path,
    after: str = "",
    stop: str = "",
    told: Path | None = None,
    checked: Path | None = None,
    nursery: Nursery | None = None,
) -> int:
    """Run the job; its exit code.

    `after`: how the master before this one ended. `stop`: why the job is to be stopped at once.
    `told`: the folder with its settings where this is a pod, whose job folder is empty at first.
    `checked`: where the definition was checked before (check.py). `nursery`: one that was begun before.
    """
    logs.configure(role="master")
    seldom_collect_garbage()
    try:
        settings = JobSettings.of_job(told or job_dir)
        logs.configure(settings.log_level, settings.log_format, "master")
        if settings.runtime == "kubernetes":
            return _serve_in_pod(settings, job_dir, after, checked)
        return run(settings, job_dir, after, stop, nursery=nursery)
    except EdlError as error:
        print(f"edl: error: {error}", file=sys.stderr)
        return error.exit_code


def seldom_collect_garbage() -> None:
    """Look for circles of objects seldom: the books make none, and have a hundred thousand objects to
    look through, which took most of the time of a compaction and of a restart."""
    gc.set_threshold(100_000, 50, 50)


def _serve_in_pod(settings: JobSettings, job_dir: Path, after: str, checked: Path | None) -> int:
    """As `run`, as the one master among the pods that may try. What ends the job is told before the
    pod ends, so that no other tries again."""
    from ..k8s.home import Home

    home = Home(settings)
    try:
        try:
            home.acquire(job_dir)
        except UsageError as error:  # nowhere to write the result: only told
            home.decided(_failed(settings, error.exit_code, str(error)))
            raise
        result = job_dir / "result.json"
        if not result.exists():
            code, message = 0, ""
            try:
                code = run(settings, job_dir, after, "", home, checked)
            except PeerError:
                raise  # the pod is told to go, or nobody answers: another one goes on
            except EdlError as error:
                code, message = error.exit_code, str(error)
            if not result.exists():  # it could not even begin
                if not message and checked is None:
                    message = _last_words(job_dir / "logs" / "describe.log")
                ended = _failed(settings, code, message)
                storage.write_file(result, json.dumps(ended).encode())
        status = json.loads(result.read_bytes())
        home.decided(status)
        return int(status["exit_code"])
    finally:
        home.close()


def _failed(settings: JobSettings, code: int, message: str) -> dict[str, Any]:
    """The status of a job that could not begin."""
    ended = {"job_name": settings.job_name, "state": "failed", "exit_code": code}
    return {**ended, "message": message, "resume": None}


def _last_words(log: Path) -> str:
    words = log.read_text(errors="replace").strip()
    return words.rpartition("\n")[2].removeprefix("edl: error: ")


def run(
    settings: JobSettings,
    job_dir: Path,
    after: str,
    stop: str,
    home: Home | None = None,
    checked: Path | None = None,
    nursery: Nursery | None = None,
) -> int:
    """The whole job; its exit code. Raises EdlError where it cannot even begin."""
    # Now, since counting the records may take minutes.
    job_identity(rpc.job_token()).encrypts(own_host())
    health = rpc.serve_health()
    if checked is None and nursery is None:
        nursery = Nursery.of_job(settings, job_dir)
    try:
        return _run(settings, job_dir, nursery, after, stop, home, checked)
    finally:
        if nursery is not None:
            nursery.close()
        if health is not None:
            health.stop(0)


def _run(
    settings: JobSettings,
    job_dir: Path,
    nursery: Nursery | None,
    after: str,
    stop: str,
    home: Home | None,
    checked: Path | None,
) -> int:
    begun = _resume(settings, job_dir)
    if begun is None:
        described: dict[str, Any] | None
        if nursery is not None:
            described, code = describe(settings, job_dir, nursery)
            if described is None:
                return code
        else:
            assert checked is not None
            described = check.read(checked)
            storage.write_file(job_dir / "describe.json", json.dumps(described).encode())
        begun = _begin(settings, job_dir, described)
    journal, queue, restore, described = begun
    tensorboard = settings.output and settings.tensorboard
    scalars = Scalars(Path(settings.output) / "tensorboard" if tensorboard else None)
    identity = job_identity(rpc.job_token())
    token = identity.token
    task_records = settings.minibatch_size * settings.minibatches_per_task
    master = Master(
        settings=settings,
        job_dir=job_dir,
        queue=queue,
        validation=cut(sources_of(described, "validation"), task_records),
        judges=_judges(settings, described, restore),
        journal=journal,
        connect=lambda addresses: RemoteServers(addresses, token, journal.epoch),
        clock=MonotonicClock(),
        identity=identity,
        restore=restore,
        watch=lambda status: _show(status, scalars, home),
    )
    memory = journal.get(MEMORY)
    if memory is None:
        for note in described.get("notes", ()):
            master.core.tell(note)
    else:
        failed = job_dir / paths.FAILED
        why = json.loads(failed.read_bytes())["message"] if failed.exists() else None
        try:
            master.resume(after, memory, why)
        except _UNREADABLE as error:
            raise _not_of_this_version(job_dir, error) from error
        failed.unlink(missing_ok=True)
    server = _listen(MasterServicer(master), token, settings.port, job_dir)
    metrics_address = scalars.serve()
    if home is not None:
        if nursery is not None:
            nursery.close()  # workers are pods of their own
        home.serve(
            lambda workers: master.front.scale(pb.ScaleRequest(num_workers=workers)),
            master.front.stop,
            master.fence,
        )
        end_with_pod(master)
    else:
        catch_signals(master, job_dir)
    about = {"address": server.address, "pid": os.getpid(), "metrics_address": metrics_address}
    about |= {"epoch": journal.epoch}
    storage.write_file(job_dir / "master.json", json.dumps(about).encode())
    log.info("serving address=%s metrics=%s", server.address, metrics_address)
    if stop:
        master.front.stop(stop)

    def start_runtime(report: OnReport) -> Runtime:
        if home is not None:
            return home.start_runtime(report)
        assert nursery is not None
        return LocalRuntime(job_dir, master_address=server.address, report=report, nursery=nursery)

    try:
        code = master.run(start_runtime)
    except Fenced:
        raise  # there is another master: the job, its status and its journal are that one's
    except BaseException:
        _leave_result(master, job_dir, scalars)
        raise
    else:
        _leave_result(master, job_dir, scalars)
    finally:
        server.stop()
        journal.close()
    return code


def _show(status: dict[str, Any], scalars: Scalars, home: Home | None) -> None:
    scalars(status)
    if home is not None:
        home.show(status)


def _leave_result(master: Master, job_dir: Path, scalars: Scalars) -> None:
    status = master.status_json()
    storage.write_file(job_dir / "result.json", status.encode())
    scalars(json.loads(status), last=True)
    scalars.close()


_MOST_EPOCHS = 1_000_000  # where the plan has no end
_UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError)
_BOOKS = {
    "first_id": int,
    "epochs_opened": int,
    "tasks": [(int, int, int, int, [int])],
    "untouched": [(int, int)],
    "quarantined": [(int, str, [int], str)],
}
_Begun = tuple[Journal, TaskQueue, str, dict[str, Any]]


def _resume(settings: JobSettings, job_dir: Path) -> _Begun | None:
    """What the master before left in its journal; None where no job has begun, or it is over."""
    if not paths.can_go_on(job_dir):
        return None
    paths.put_aside_failure(job_dir)
    journal = Journal(job_dir / paths.JOURNAL, FORMAT)
    if journal.is_blank:  # its master was killed before it had begun
        journal.close()
        return None
    decisions = journal.length
    try:
        described = parse(read_plain(job_dir / "describe.json"))
        queue = TaskQueue(plan_of(settings, described), tolerance=_tolerance(settings))
        restore(queue, journal)
    except (OSError, *_UNREADABLE) as error:
        raise _not_of_this_version(job_dir, error) from error
    log.info("resuming epoch=%d decisions=%d", journal.epoch, decisions)
    return journal, queue, "", described


def _not_of_this_version(job_dir: Path, error: Exception) -> JobError:
    log.debug("the journal cannot be replayed", exc_info=error)
    why = error if isinstance(error, ValueError) else repr(error)
    return JobError(
        f"the job in {job_dir} cannot be gone on with: what its journal says is not what a master of "
        f"this version writes: {why}. Go on with it by the version that wrote it, or start it again, "
        "with --checkpoint_dir_for_init and its last checkpoint where it has one."
    )


def _begin(settings: JobSettings, job_dir: Path, described: dict[str, Any]) -> _Begun:
    queue, checkpoint = open_queue(settings, described)
    for suffix in ("", "-wal", "-shm"):  # all of an older one: its log would be replayed
        (job_dir / f"{paths.JOURNAL}{suffix}").unlink(missing_ok=True)
    (job_dir / "result.json").unlink(missing_ok=True)
    journal = Journal(job_dir / paths.JOURNAL, FORMAT)
    journal.compact({"queue": dump_queue(queue)})
    return journal, queue, checkpoint, described


def _listen(servicer: MasterServicer, token: str, port: int, job_dir: Path) -> rpc.AsyncServer:
    """Serve where the master before did, so that nobody has to look; else at `port`."""

    def listen(port: int) -> rpc.AsyncServer:
        return rpc.AsyncServer(
            lambda server: master_pb2_grpc.add_MasterServicer_to_server(servicer, server),
            token=token,
            port=port,
        )

    before = paths.master_address(job_dir)
    if before is None:
        return listen(port)
    try:
        return listen(int(before.rpartition(":")[2]))
    except EdlError:  # a master that sleeps may hold it yet
        return listen(0)


def describe(
    settings: JobSettings, job_dir: Path, nursery: Nursery
) -> tuple[dict[str, Any] | None, int]:
    """What the worker says of definition and data; or None and the exit code: it has said why."""
    log, result = job_dir / "logs" / "describe.log", job_dir / "describe.json"
    result.unlink(missing_ok=True)
    nursery.await_ready(_IMPORT_S, _SAY_S, lambda what, s: _tell_start(job_dir, what, s))
    phase = _Phase(job_dir, settings.hang_s)
    child = nursery.start(["edl.worker", "--describe", "--job-dir", str(job_dir)], os.environ, log)
    if child is None:
        raise JobError(f"the definition cannot be checked: see {job_dir / 'logs' / 'nursery.log'}")

    def end(number: signal.Signals) -> None:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, number)

    previous = signal.signal(signal.SIGTERM, lambda *_: end(signal.SIGTERM))
    try:
        while (code := phase.ended(child)) is None:
            if phase.is_over:
                end(STACK_SIGNAL)
                time.sleep(_STACK_S)
                raise JobError(
                    f"{phase.what} has taken {phase.limit_s:g} s, so it hangs (--hang_s): {log} has "
                    "its stack"
                )
    except KeyboardInterrupt:
        code = -signal.SIGINT
    finally:
        end(signal.SIGKILL)
        signal.signal(signal.SIGTERM, previous)
        (job_dir / paths.STARTING).unlink(missing_ok=True)
    words = log.read_text(errors="replace")
    sys.stderr.write(words)
    if code == 0 and result.exists():
        return json.loads(result.read_text()), 0
    if -code in (signal.SIGTERM, signal.SIGINT):
        return None, EXIT_INTERRUPTED
    if code > 0 and ("edl: error" in words or "Traceback" in words):
        return None, code
    memory = _MORE_MEMORY if code == -signal.SIGKILL else ""
    raise JobError(f"{phase.what} {describe_end(code)}{memory}, and not with an error: see {log}")


_MORE_MEMORY = (
    ", most likely because it needs more memory than there is: give the master more "
    "(--master_resource_request memory=1Gi), or this machine"
)


class _Phase:
    """What the check of the definition does now, as it says itself, and for how long."""

    def __init__(self, job_dir: Path, hang_s: float) -> None:
        self._every_s = min(_SAY_S, hang_s / 4) if hang_s else _SAY_S
        self._dir = job_dir
        self._hang_s = hang_s
        self._began = time.monotonic()
        (job_dir / paths.DESCRIBING).unlink(missing_ok=True)
        self.what = "the check of the definition"

    def ended(self, child: ForkedReplica) -> int | None:
        """Its exit code, or None after a while."""
        try:
            return child.wait(self._every_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(OSError):
                what = (self._dir / paths.DESCRIBING).read_text()
                if what != self.what:
                    self.what, self._began = what, time.monotonic()

    @property
    def limit_s(self) -> float:
        return max(self._hang_s, _DESCRIBE_S) if self.what == paths.COUNTING else self._hang_s

    @property
    def is_over(self) -> bool:
        """It hangs; if it does not, the user is told that it still goes on."""
        seconds = time.monotonic() - self._began
        _tell_start(self._dir, self.what, seconds)
        return 0 < self.limit_s <= seconds


def _tell_start(job_dir: Path, what: str, seconds: float) -> None:
    text = f"{what}, for {seconds:.0f} s by now"
    log.info("starting: %s", text)
    with contextlib.suppress(OSError):
        storage.write_file(job_dir / paths.STARTING, text.encode())


def open_queue(settings: JobSettings, described: dict[str, Any]) -> tuple[TaskQueue, str]:
    """The queue, and the checkpoint whose books it goes on with ("" where it begins afresh).

    A checkpoint of the same plan that was not at its end is gone on with, position by position;
    any other one only gives its parameters, unless --resume forbids that (UsageError).
    """
    plan = plan_of(settings, described)
    tolerance = _tolerance(settings)
    path = settings.resume or settings.checkpoint_dir_for_init
    if settings.command == "train" and path:
        manifest = storage.load(path)
        if settings.resume:
            check_same_plan(manifest.books.get("plan", {}), plan.fingerprint())
        # With another optimizer, which a new job may have, only the parameters are of use.
        same = settings.resume or manifest.model.get("optimizer") == described.get("optimizer")
        if same and manifest.books.get("plan") == plan.fingerprint():
            queue = _queue_of(manifest, plan, tolerance)
            if settings.resume or not queue.plan_done:
                log.info(
                    "going on with checkpoint=%s records=%d", manifest.directory, queue.records_done
                )
                return queue, str(manifest.directory)
    return TaskQueue(plan, tolerance=tolerance), ""


def _queue_of(manifest: storage.Manifest, plan: Plan, tolerance: int) -> TaskQueue:
    """The queue that goes on where the checkpoint's books end. Raises CheckpointError."""
    try:
        must_be({"untouched": [], **manifest.books}, _BOOKS, "books")
        opened = manifest.books["epochs_opened"]
        if opened > (_MOST_EPOCHS if plan.epochs is None else plan.epochs):
            raise ValueError(f"{opened} epochs are open, of {plan.epochs}")
        queue = TaskQueue.from_books(plan, manifest.books, tolerance=tolerance)
        for number, _, position, _, skips in manifest.books["tasks"]:
            size = queue.tasks[number].size
            if position > size or any(skip >= size for skip in skips):
                raise ValueError(f"task {number}, of {size} records, stands at {position}")
    except _UNREADABLE as error:
        what = f"there is no task {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(
            f"the books in {manifest.directory} are damaged: {what}. Begin from its parameters alone: "
            f"--checkpoint_dir_for_init {manifest.directory} with another --seed."
        ) from error
    return queue


def _judges(settings: JobSettings, described: dict[str, Any], restore: str) -> Judges:
    """What they have counted before, too, where the job goes on with a checkpoint."""
    judges = judges_of(settings, described.get("metrics", {}))
    if restore:
        judges.remember(storage.read_manifest(restore, checksums=False).books.get("judged", {}))
    return judges


def _tolerance(settings: JobSettings) -> int:
    return max(1, settings.task_fault_tolerance)


def end_with_pod(master: Master) -> None:
    """A pod that is told to go takes nothing with it: its successor goes on with all that runs."""

    def leave(number: int, _: Any) -> None:
        threading.Thread(target=master.fence, args=("this pod is told to go",), daemon=True).start()

    signal.signal(signal.SIGTERM, leave)


def catch_signals(master: Master, job_dir: Path) -> None:
    """SIGTERM and SIGINT stop the job in order; the second one ends it at once."""
    asked = threading.Event()

    def stop(number: int, _: Any) -> None:
        # Not from the handler itself: it may have interrupted the holder of a lock.
        act = end_now if asked.is_set() else lambda: master.front.stop(signal.Signals(number).name)
        asked.set()
        threading.Thread(target=act, daemon=True).start()

    def end_now() -> None:
        master.abort()
        ended = {"state": "failed", "exit_code": EXIT_INTERRUPTED, "message": "killed"}
        result = json.dumps({"job_name": master.core.settings.job_name, **ended})
        storage.write_file(job_dir / "result.json", result.encode())
        os._exit(EXIT_INTERRUPTED)

    handler: Callable[[int, Any], None] = stop
    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)
