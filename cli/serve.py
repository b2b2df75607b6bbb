"""`edl serve`: models that answer over HTTP and gRPC."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..common import log as logs
from ..common.errors import CheckpointError, UsageError
from .options import NAMES
from .output import Function
from .place import complete_jobs

_TOKEN_VARIABLE = "EDL_SERVE_TOKEN"


def _count(name: str, default: int, text: str) -> Callable[[Function], Function]:
    return click.option(name, default=default, show_default=True, type=click.IntRange(1), help=text)


def _seconds(name: str, default: float, text: str) -> Callable[[Function], Function]:
    return click.option(
        name, default=default, show_default=True, type=click.FloatRange(0), help=text
    )


@click.command(context_settings=NAMES)
@click.argument("models", nargs=-1, metavar="MODEL...", shell_complete=complete_jobs)
@click.option("--model", "more", multiple=True, metavar="NAME=PLACE", help="The same as a flag.")
@click.option("--model_def", default="", help="Definition.  [default: the job's]")
@click.option("--model_zoo", default="", metavar="FOLDER", help="Folder of definitions.")
@click.option(
    "--data",
    default="",
    metavar="FILE",
    help="A few records.  [default: the job's --training_data]",
)
@click.option("--device", default="auto", type=click.Choice(["auto", "cpu", "cuda"]))
@click.option("--no_checksums", is_flag=True, help="Compare sizes of files only: opens sooner.")
@_count("--versions", 1, "Versions of a model that may be asked.")
@_seconds("--watch_s", 5.0, "Look for newer versions so often; 0: never.")
@_count("--batch_size", 256, "Most rows of a batch.")
@_seconds("--queue_delay_s", 0.0, "How long a batch that is not full waits for more.")
@_count("--max_queued", 1 << 14, "Rows that may wait.")
@_count("--threads", 1, "Threads of each model that compute.")
@click.option(
    "--torch_threads",
    default=0,
    type=click.IntRange(0),
    help="Threads of torch for a batch; 0: the cores but one, shared out among --threads.",
)
@_count("--max_body_mib", 64, "Largest request.")
@_seconds("--timeout_s", 30.0, "For an answer.")
@_seconds("--linger_s", 0.0, "Answer on for so long after SIGTERM.")
@click.option("--http_port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--grpc_port", default=8001, show_default=True, type=click.IntRange(0, 65535))
@click.option("--token_file", default="", metavar="FILE", help=f"Token, or {_TOKEN_VARIABLE}.")
@click.option("--tls_cert", default="", metavar="FILE", help="Certificate (PEM).")
@click.option("--tls_key", default="", metavar="FILE", help="Its key (PEM).")
@click.option("--tls_client_ca", default="", metavar="FILE", help="Who asks needs one of this CA.")
@click.option("--plain", is_flag=True, help="Off loopback without TLS and token all the same.")
@click.option("--log_format", default="text", type=click.Choice(["text", "json"]))
def serve(models: tuple[str, ...], more: tuple[str, ...], **given: Any) -> None:
    """Answer requests with trained models, until stopped: KServe's v2 protocol, HTTP and gRPC.

    MODEL is a job, a checkpoint or a folder of them, or NAME=PLACE. What such a job or folder gets
    later is opened beside what answers, and takes its place.
    """
    if not models and not more:
        raise UsageError("Name what is to be served: a job, a checkpoint, or a folder of them.")
    from ..serve.server import check_installed

    check_installed()
    logs.configure(format=given["log_format"], role="serve")
    _set_threads(given)
    from ..serve import server
    from ..serve.from_checkpoint import Options
    from ..serve.sources import named, source_of

    options = Options(
        definition=given["model_def"],
        model_zoo=given["model_zoo"],
        data=given["data"],
        device=given["device"],
        checksums=not given["no_checksums"],
    )
    sources = [source_of(*named(each), options) for each in (*models, *more)]
    try:
        server.serve(sources, _place(given), _terms(given), click.echo)
    except CheckpointError as error:  # it is what the user named
        raise UsageError(str(error)) from error


def _set_threads(given: dict[str, Any]) -> None:
    import torch

    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(given["torch_threads"] or max(1, (cores - 1) // given["threads"]))


def _place(given: dict[str, Any]) -> Any:
    from ..common.listen import own_host
    from ..serve.server import Place, Tls

    return Place(
        host=own_host(),
        http_port=given["http_port"],
        grpc_port=given["grpc_port"],
        token=_token(given["token_file"]),
        tls=Tls(given["tls_cert"], given["tls_key"], given["tls_client_ca"]),
        plain=given["plain"],
    )


def _terms(given: dict[str, Any]) -> Any:
    from ..serve.batcher import Rules
    from ..serve.kserve.http import Limits
    from ..serve.server import Terms

    return Terms(
        rules=Rules(
            max_batch_size=given["batch_size"],
            max_queue_delay_s=given["queue_delay_s"],
            max_queued=given["max_queued"],
            threads=given["threads"],
        ),
        limits=Limits(body_nbytes=given["max_body_mib"] << 20),
        keep=given["versions"],
        watch_s=given["watch_s"],
        timeout_s=given["timeout_s"],
        linger_s=given["linger_s"],
    )


def _token(file: str) -> str:
    if not file:
        return os.environ.get(_TOKEN_VARIABLE, "").strip()
    try:
        token = Path(file).read_text().strip()
    except OSError as error:
        raise UsageError(f"--token_file {file}: {error.strerror}.") from error
    if not token or not token.isascii():
        raise UsageError(f"--token_file {file} has no token: one line of plain characters.")
    return token
