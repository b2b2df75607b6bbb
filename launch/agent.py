"""A node agent: torch's elastic agent for the script of a launched job, on one machine.

The coordinator counts failures and knows when all have finished, so that torch's own counting (for
each agent alone) and its barrier at the end (which takes a lost node for a finished one) are left
out.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousConnectionError

from ..common.errors import JobError
from ..proto import rendezvous_pb2 as pb
from . import devices
from . import script as script_
from .handler import EdlRendezvous, handler_of
from .node import Node
from .state import DRAINED
from .status import INTERRUPTED

log = logging.getLogger("edl.launch")

_SAVED = 143  # of a script of edl.adaptive that was told to go, and has saved
_UNCOUNTED = 1 << 30  # restarts: the coordinator counts
_WORDS = 20  # lines of a failed worker's log
# Seconds: a guess; what a kill loses, against some pauses of a script of edl.adaptive.
_DEFAULTS = {"EDL_CHECKPOINT_INTERVAL_S": "120"}
# What `accelerate launch` tells on machines without: else each Accelerator() there trains alone.
_ON_CPUS = {"ACCELERATE_USE_CPU": "true"}


def run(node: Node, arguments: Sequence[str], *, nproc: int, logs: Path, tee: bool) -> int:
    """Run `python arguments` in round after round until the job is over; the exit code.

    `logs`: the folder of the workers' logs; `tee`: they are printed too. Raises JobError where the
    coordinator is gone for too long.
    """
    handler = handler_of(node, nproc)
    files = _Logs(handler, logs, node.report_file, tee)
    agent = _Agent(
        WorkerSpec(
            role="worker",
            local_world_size=nproc,
            entrypoint=sys.executable,
            args=("-I", "-S", str(Path(script_.__file__)), str(os.getpid()), *arguments),
            rdzv_handler=handler,
            max_restarts=_UNCOUNTED,
            local_addr=node.host,
        ),
        files,
        log_line_prefix_template="[rank ${rank}] ",
    )
    agent.node, agent.files = node, files
    signal.signal(signal.SIGTERM, _end)  # until torch's agent has its own
    try:
        while True:
            agent.run()
            reply = node.finish()
            if reply.closed:
                return 0 if reply.closed == "done" else 1
            log.info("round=%d -> over before all had finished: once more", handler.round)
    except RendezvousClosedError:
        return 0 if node.closed == "done" else 1
    except RendezvousConnectionError as error:
        raise JobError(str(error)) from error
    except SignalException as error:
        log.info("signal=%s -> leaving", signal.Signals(error.sigval).name)
        return INTERRUPTED
    finally:
        node.leave()


def _end(number: int, _frame: object) -> None:
    raise SignalException("told to end", signal.Signals(number))


class _Agent(LocalElasticAgent):
    node: Node
    files: _Logs

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed():
            self.node.failure = self._failure(result.failures)
        return result

    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, timeout: float | None = None
    ) -> None:
        del timeout  # torch's own waits 30 s between two rounds, whatever was asked for
        if self._pcontext is not None:
            self._pcontext.close(death_sig, self.node.settings.stop_timeout_s)
        super()._shutdown(death_sig)

    def _exit_barrier(self) -> None:
        """Do nothing: `run` asks the coordinator."""

    def _failure(self, failures: Mapping[int, ProcessFailure]) -> pb.WorkerFailure | None:
        """Return the first failure of a worker that nobody asked for."""
        asked = (DRAINED, _SAVED, -signal.SIGTERM)
        own = [(rank, each) for rank, each in failures.items() if each.exitcode not in asked]
        if not own:
            return None
        rank, first = min(own, key=lambda each: each[1].timestamp)
        words = self.files.last_words(first.local_rank)
        return pb.WorkerFailure(rank=rank, exit_code=first.exitcode, words=words)


class _Logs(LogsSpecs):
    """The script's logs, one for each rank and round, and the variables that torch does not set."""

    def __init__(self, handler: EdlRendezvous, folder: Path, report_file: Path, tee: bool) -> None:
        super().__init__(str(folder))
        self._handler = handler
        self._folder = folder
        self._report_file = report_file
        self._prints = tee
        self._paths: dict[int, str] = {}

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self._folder.mkdir(parents=True, exist_ok=True)
        errors = {}
        for local_rank, env in envs.items():
            path = self._folder / f"rank-{env['RANK']}.round-{self._handler.round}"
            self._paths[local_rank] = f"{path}.log"
            errors[local_rank] = f"{path}.error.json"
            env.update(self._environment(env))
            env["TORCHELASTIC_ERROR_FILE"] = errors[local_rank]
        printed = dict(self._paths) if self._prints else {}
        nothing = dict.fromkeys(envs, "")  # the script sends both to one
        return LogsDest(dict(self._paths), nothing, printed, {}, errors)

    def _environment(self, env: Mapping[str, str]) -> dict[str, str]:
        handler = self._handler
        settings = handler.settings
        told = {
            "TORCHELASTIC_RESTART_COUNT": str(handler.restarts),
            "TORCHELASTIC_MAX_RESTARTS": str(settings.max_restarts),
            "EDL_NUM_NODES": str(handler.num_nodes),
            "EDL_NUM_REPLICAS": env["WORLD_SIZE"],
            "EDL_REPLICA_RANK": env["RANK"],
            "EDL_NUM_RESTARTS": str(handler.restarts),
            "EDL_CHECKPOINT_PATH": settings.checkpoint_dir,
            "EDL_ROUND": str(handler.round),
            "EDL_CHECKPOINT_VERSION": str(handler.checkpoint),
            "EDL_CHECKPOINT_KEEP": str(settings.keep_checkpoint_max),
            "EDL_REPORT_FILE": str(self._report_file),
            # what it prints is in its log at once, and its last words too where it is killed
            "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
        }
        defaults = _DEFAULTS if devices.are_there() else _DEFAULTS | _ON_CPUS
        told |= {name: text for name, text in defaults.items() if name not in os.environ}
        if handler.before and (gpus := devices.visible()):
            told[devices.VISIBLE] = ",".join(
                devices.seen(gpus, handler.before, int(env["LOCAL_WORLD_SIZE"]))
            )
        return told

    def last_words(self, local_rank: int) -> str:
        text = Path(self._paths[local_rank]).read_text(errors="replace")
        return "\n".join(text.splitlines()[-_WORDS:])
