"""`python -m edl.ps --index I --incarnation X --master HOST:PORT`: one parameter server.

The job's token comes in EDL_TOKEN, its certificate in EDL_IDENTITY. Exit codes: 0 drained; 1 lost,
without a master, or unable to read its checkpoint or snapshots, or torn by a step that failed half
way.
"""

from __future__ import annotations

from ..common.process import allow_many_files, end_at_sigterm, end_with

if __name__ == "__main__":
    end_at_sigterm()  # what is imported now takes a second

import argparse
import logging
import signal

from ..common import log as logs
from ..common import notice, rpc
from ..common.errors import EdlError, Unreachable
from ..common.identity import job_identity
from ..common.settings import JobSettings
from ..kernels.malloc import keep_freed_memory
from .server import Server

log = logging.getLogger("edl.ps")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m edl.ps", description="One parameter server.")
    parser.add_argument("--index", type=int, required=True, help="number of the shard")
    parser.add_argument("--incarnation", required=True, help="unique name of this process")
    parser.add_argument("--master", required=True, help="host:port of the master")
    parser.add_argument("--restore", default="", help="checkpoint to continue, with its ledger")
    parser.add_argument(
        "--recover",
        type=_recover,
        default=("", 0),
        metavar="INCARNATION:NUMBER",
        help="begin where this incarnation ended, at this snapshot of it or a later one",
    )
    given = parser.parse_args(arguments)
    keep_freed_memory()
    allow_many_files()
    logs.configure(role="ps", index=given.index)
    try:
        server = Server(
            index=given.index,
            incarnation=given.incarnation,
            master=given.master,
            identity=job_identity(rpc.job_token()),
        )
    except EdlError as error:
        log.error("%s", error)
        return error.exit_code
    signal.signal(signal.SIGTERM, lambda *_: server.drain())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the master drains us
    try:
        return _run(server, given.restore, given.recover)
    finally:
        server.close()


def _recover(text: str) -> tuple[str, int]:
    incarnation, _, number = text.rpartition(":")
    return incarnation, int(number)


def _run(server: Server, checkpoint: str, recover: tuple[str, int]) -> int:
    try:
        settings = server.register(JobSettings().master_timeout_s)
        if settings is None:
            return 0 if server.draining else 1
        logs.configure(settings.log_level, settings.log_format, "ps", server.index)
        notice.watch(settings.preemption_notice)
        store = server.open_store(settings, checkpoint, recover)
        log.info("serving address=%s", server.address)
        return server.beat_until_end(store, settings.master_timeout_s)
    except Unreachable as error:
        log.error("the master did not answer: %s", error)
        return 1
    except EdlError as error:
        log.error("%s", error)
        return error.exit_code


if __name__ == "__main__":
    end_with(main)
