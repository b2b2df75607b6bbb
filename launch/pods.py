"""A launched job in a cluster: the coordinator in the master's pod, node agents as workers' pods.

The pod of the coordinator is one of a master as any other (k8s/home.py): its Lease, its journal in
the job's volume, the agents' pods that it makes and adopts, and the status that the controller
reads.
"""

from __future__ import annotations

import importlib.util
import logging
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from ..common import log as logs
from ..common import rpc, storage
from ..common.errors import EdlError, UsageError
from ..common.launched import LaunchedSettings
from ..k8s import check
from ..k8s.home import Home as Pod
from ..k8s.pods import JOB_DIR, state_folder
from ..runtime.base import OnReport, Runtime
from . import serve
from .coordinator import Coordinator
from .fleet import Crew
from .settings import LaunchSettings

log = logging.getLogger("edl.launch")

_LOGS = "/tmp/edl-logs"  # of an agent, whose pod's log has the same
_LOOK_S = 5.0  # ages in the status are no older
_GONE_S = 5.0  # beyond what a script has to end


def describe(job_dir: Path) -> int:
    """Look, where the workers' files are, whether the script is there; return the exit code."""
    try:
        settings = LaunchedSettings.of_job(job_dir)
        _look(settings)
    except EdlError as error:
        print(f"edl: error: {error}", file=sys.stderr)
        return error.exit_code
    storage.write_file(job_dir / "describe.json", b"{}")
    return 0


def _look(settings: LaunchedSettings) -> None:
    """Raise UsageError where the script is not there."""
    script = settings.script
    if settings.module:
        if importlib.util.find_spec(script.partition(".")[0]) is None:
            raise UsageError(
                f"There is no module {script.partition('.')[0]} in the image {settings.image_name}:"
                " install it there, or name a script by its path."
            )
    elif not Path(script).is_file():
        what = "is a folder" if Path(script).is_dir() else "is not there"
        raise UsageError(
            f"The script {script} {what}, in the image {settings.image_name} or a volume: give the "
            f"path that a Python file has in the pods, from the root or from {Path.cwd()}."
        )


def serve_in_pod(job_dir: Path, told: Path, checked: Path | None) -> int:
    """Coordinate the job as the one coordinator among the pods that may try; its exit code.

    `told`: the folder with its settings. `checked`: that of the check (k8s/check.py).
    """
    logs.configure(role="coordinator")
    try:
        settings = LaunchedSettings.of_job(told)
        logs.configure(settings.log_level, settings.log_format, "coordinator")
        health = rpc.serve_health()
        pod = Pod(settings)

        def run() -> tuple[int, str]:
            if not (job_dir / "describe.json").exists():
                _check(settings, job_dir, checked)
            ours = LaunchSettings.in_pods(settings, state_folder(settings))
            home = PodHome(pod, settings, ours)
            return serve.run(ours, job_dir, home, settings.num_workers), ""

        try:
            return pod.live(job_dir, run)
        finally:
            if health is not None:
                health.stop(0)
    except EdlError as error:
        print(f"edl: error: {error}", file=sys.stderr)
        return error.exit_code


def _check(settings: LaunchedSettings, job_dir: Path, checked: Path | None) -> None:
    """Read the check of a new job, which is made here where no other container has. Raises."""
    if checked is None:
        _look(settings)
    else:
        check.read(checked)
    storage.write_file(job_dir / "describe.json", b"{}")


class PodHome:
    """A pod: the cluster says what the user wants, and runs the agents as pods of their own."""

    def __init__(self, pod: Pod, settings: LaunchedSettings, ours: LaunchSettings) -> None:
        self._pod = pod
        env = {
            "EDL_JOB_NAME": settings.job_name,
            "EDL_SHARE_PATH": f"{JOB_DIR}/share",
            serve.BOARD: f"{JOB_DIR}/tensorboard",
            **settings.envs,
        }
        told = ("--nproc", str(ours.nproc_per_node), "--logs", _LOGS, "--tee")
        self.crew = Crew(
            role="worker",
            env=env,
            arguments=(*told, "--", *ours.python),
            grace_s=ours.stop_timeout_s + _GONE_S,
            in_pods=True,
            relaunches=settings.relaunch_on_worker_failure,
        )

    def start_runtime(self, report: OnReport, _address: str) -> Runtime:
        return self._pod.start_runtime(report, keep_done=True)

    def serve(self, coordinator: Coordinator) -> None:
        self._pod.serve(lambda n, *_: coordinator.scale(n), coordinator.stop, coordinator.fence)
        threading.Thread(target=self._show, args=(coordinator,), name="show", daemon=True).start()

        def leave(_number: int, _frame: FrameType | None) -> None:
            why = "this pod is told to go"  # its successor goes on with all that runs
            threading.Thread(target=coordinator.fence, args=(why,), daemon=True).start()

        signal.signal(signal.SIGTERM, leave)

    def _show(self, coordinator: Coordinator) -> None:
        revision = 0
        while True:
            status: dict[str, Any]
            revision, status = coordinator.status(revision, _LOOK_S)
            self._pod.show(status)
