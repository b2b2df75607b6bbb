"""`python -m edl.launch`: the coordinator of a launched job, or, with --node, one of its agents.

The coordinator has a supervisor (durable/supervisor.py), which starts it again when it is killed.
The job's identity comes in EDL_TOKEN and EDL_IDENTITY. Exit codes: those of `edl launch`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ..common.errors import EdlError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m edl.launch", description="A launched job.")
    parser.add_argument("--job-dir", type=Path, help="folder with settings.json")
    parser.add_argument("--serve", action="store_true", help="coordinate, without a supervisor")
    parser.add_argument("--after", default="", help="how the coordinator before this one ended")
    parser.add_argument("--stop", default="", help="stop the job at once, for this reason")
    parser.add_argument("--settings", type=Path, help="folder with settings.json, in a pod")
    parser.add_argument("--checked", type=Path, help="folder that the check has filled, in a pod")
    parser.add_argument("--describe", action="store_true", help="look whether the script is there")
    parser.add_argument(
        *("--node", "--master"), metavar="HOST:PORT", help="be a node agent of this coordinator"
    )
    parser.add_argument("--index", type=int, help="number of the agent among those kept there")
    parser.add_argument("--incarnation", default="", help="its name")
    parser.add_argument("--nproc", type=int, default=1, help="workers on this node")
    parser.add_argument("--logs", type=Path, help="folder of the workers' logs")
    parser.add_argument("--tee", action="store_true", help="print what the workers print")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="what each worker's Python gets")
    given = parser.parse_args(arguments)
    if given.node:
        return _node(given)
    job_dir = given.job_dir.absolute()
    if given.describe:
        from .pods import describe

        return describe(job_dir)
    if given.serve:
        if given.settings is not None:
            from .pods import serve_in_pod

            return serve_in_pod(job_dir, given.settings, given.checked)
        from .serve import serve

        return serve(job_dir, given.stop)
    from ..durable.supervisor import supervise

    told = ["--settings", str(given.settings)] if given.settings else []
    told += ["--checked", str(given.checked)] if given.checked else []
    command = (sys.executable, "-m", "edl.launch", *told)
    return supervise(job_dir, command, ends_with_pod=bool(told))


def _node(given: argparse.Namespace) -> int:
    from ..common import log as logs
    from ..common import paths, rpc
    from ..common.identity import job_identity
    from ..common.process import end_at_sigterm
    from .client import RendezvousClient
    from .node import Node
    from .reach import host_towards

    logs.configure(role="node")
    end_at_sigterm()  # until the agent has a handler of its own
    if given.nproc > 1:  # as torchrun does: else each worker takes all cores
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    # In a pod the address is a Service's, which finds each coordinator.
    folder = "" if os.environ.get("EDL_POD") else os.environ.get("EDL_JOB_DIR")
    try:
        health = rpc.serve_health()
        client = RendezvousClient(
            given.node,
            job_identity(rpc.job_token()),
            patience_s=0.0,
            where=lambda: paths.master_address(folder) if folder else None,
            node=given.incarnation,
        )
        given.logs.mkdir(parents=True, exist_ok=True)
        report_file = given.logs / f"report-{os.getpid()}.json"
        node = Node(client, host_towards(given.node), report_file)
        from . import agent  # torch, while the node is known already

        script = given.script[1:] if given.script[:1] == ["--"] else given.script
        try:
            return agent.run(node, script, nproc=given.nproc, logs=given.logs, tee=given.tee)
        finally:
            report_file.unlink(missing_ok=True)
            if health is not None:
                health.stop(0)
    except EdlError as error:
        print(f"edl: error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    from ..common.process import end_with

    end_with(main)
