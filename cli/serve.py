"""`edl serve`: models that answer over HTTP and gRPC."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..common import cores
from ..common import log as logs
from ..common.cluster_settings import POD_USER
from ..common.errors import CheckpointError, UsageError
from ..common.values import check_namespace
from .export import definition_options
from .options import NAMES, flags_given, token_of
from .output import Function
from .paths import LocalPath
from .place import complete_jobs

if TYPE_CHECKING:
    from ..serve.from_checkpoint import Options
    from ..serve.server import Place, Terms
    from ..serve.sources import Bringer

_TOKEN_VARIABLE = "EDL_SERVE_TOKEN"
_FOLLOWED_S = 1.0  # between two looks for deltas, at most
_FIRST_S = 60.0  # until the first base of a job that is followed is there
_OF_YAML = {"image", "name", "replicas", "resource_request", "resource_limit", "volume"}
_OF_YAML |= {"secret", "namespace", "target_cpu", "max_unavailable", "cluster_spec", "pod_user"}
# What the pods' own flags say, or the models'.
_NOT_IN_PODS = {
    "as_objects",
    "models",
    "more",
    "follow",
    "plain",
    "http_port",
    "grpc_port",
    "linger_s",
}
_NOT_IN_PODS |= {"token_file", "tls_cert", "tls_key", "tls_client_ca", "log_format"}


def _count(name: str, default: int, text: str) -> Callable[[Function], Function]:
    return click.option(name, default=default, show_default=True, type=click.IntRange(1), help=text)


def _seconds(name: str, default: float, text: str) -> Callable[[Function], Function]:
    return click.option(
        name, default=default, show_default=True, type=click.FloatRange(0), help=text
    )


@click.command(context_settings=NAMES)
@click.argument("models", nargs=-1, metavar="MODEL...", shell_complete=complete_jobs)
@click.option("--model", "more", multiple=True, metavar="NAME=PLACE", help="The same as a flag.")
@click.option(
    "--follow",
    multiple=True,
    metavar="NAME=FOLDER",
    help="Serve a job that trains, by its --delta_dir (a folder or URL).",
)
@definition_options
@click.option("--device", default="auto", type=click.Choice(["auto", "cpu", "cuda"]))
@click.option("--no_checksums", is_flag=True, help="Compare sizes of files only: opens sooner.")
@_count("--versions", 1, "Versions of a model that may be asked.")
@_seconds("--watch_s", 5.0, "Look for newer versions so often; 0: never.")
@_seconds(
    "--max_age_s", 0.0, "Ready while what --follow serves was written within so long; 0: whenever."
)
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
@click.option(
    "--yaml", "as_objects", is_flag=True, help="Print objects for kubectl; serve nothing."
)
@click.option("--image", default="", help="With --yaml: image.  [default: edl:VERSION]")
@click.option("--name", default="", help="With --yaml: name.  [default: the first model's]")
@click.option(
    "--replicas",
    default="1",
    show_default=True,
    metavar="N|MIN:MAX",
    help="With --yaml: pods; MIN:MAX: by need (a HorizontalPodAutoscaler).",
)
@click.option(
    "--target_cpu",
    type=click.IntRange(1, 1000),
    metavar="PERCENT",
    help="With --replicas MIN:MAX: use of the CPU asked for that is meant.  [default: 80]",
)
@click.option(
    "--max_unavailable",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="With several --replicas: pods that drains may take at a time.  [default: 1]",
)
@click.option(
    "--cluster_spec",
    default="",
    type=LocalPath(),
    metavar="FILE",
    help="With --yaml: laid over the pods (node selectors, tolerations), as of a job: YAML of the "
    "parts pod and serve, or a .py file.",
)
@click.option(
    "--pod_user",
    default=POD_USER,
    show_default=True,
    help="With --yaml: as of a job; any: the namespace's.",
)
@click.option(
    "--resource_request",
    default="cpu=1,memory=2048Mi",
    show_default=True,
    help="With --yaml: what a pod asks.",
)
@click.option("--resource_limit", default="", help="With --yaml: default: the memory asked for.")
@click.option(
    "--volume", default="", help="With --yaml: claim_name=NAME,mount_path=PATH, as of a job."
)
@click.option("--secret", default="", help="With --yaml: Secret with token, tls.crt and tls.key.")
@click.option("--namespace", "-n", default="", help="With --yaml: namespace.")
def serve(
    models: tuple[str, ...], more: tuple[str, ...], follow: tuple[str, ...], **given: Any
) -> None:
    """Answer requests with trained models, until stopped: KServe's v2 protocol, HTTP and gRPC.

    MODEL is a job, a checkpoint or a folder of them, or NAME=PLACE. What such a job or folder gets
    later is opened beside what answers, and takes its place.
    """
    if not models and not more and not follow:
        raise UsageError("Name what is to be served: a job, a checkpoint, or a folder of them.")
    if given["max_age_s"] and not follow:
        raise UsageError(
            "--max_age_s is of jobs that are followed: name one (--follow NAME=FOLDER), or leave "
            "it out."
        )
    if given["as_objects"]:
        click.echo(_as_yaml((*models, *more), follow, given), nl=False)
        return
    if said := sorted(_OF_YAML & flags_given()):
        raise UsageError(f"--{said[0]} is of --yaml: add it, or leave this out.")
    from ..serve.server import check_installed

    check_installed()
    logs.configure(format=given["log_format"], role="serve")
    _set_threads(given)
    from ..serve import server

    bringers = [*_watched((*models, *more), given), *_followed(follow, given)]
    try:
        server.serve(bringers, _place(given), _terms(given), click.echo)
    except CheckpointError as error:  # it is what the user named
        raise UsageError(str(error)) from error


def _options(given: dict[str, Any]) -> Options:
    from ..serve.from_checkpoint import Options

    return Options(
        definition=given["model_def"],
        model_zoo=given["model_zoo"],
        data=given["data"],
        device=given["device"],
        checksums=not given["no_checksums"],
    )


def _watched(models: Sequence[str], given: dict[str, Any]) -> list[Bringer]:
    from ..serve.sources import Watch, named, source_of

    options = _options(given)
    return [
        Watch(source_of(*named(each), options), given["versions"], time.monotonic)
        for each in models
    ]


def _followed(follow: Sequence[str], given: dict[str, Any]) -> list[Bringer]:
    if not follow:
        return []
    from ..serve.following import Following
    from ..serve.sources import named

    options = _options(given)
    period_s = min(given["watch_s"] or _FOLLOWED_S, _FOLLOWED_S)
    return [
        Following(
            *named(each),
            options,
            period_s=period_s,
            first_s=_FIRST_S,
            max_age_s=given["max_age_s"],
        )
        for each in follow
    ]


def _as_yaml(models: Sequence[str], follow: Sequence[str], given: dict[str, Any]) -> str:
    from ..k8s.outside.cluster_spec import Spec
    from ..model_zoo.image import BASE_IMAGE
    from ..serve import manifests
    from ..serve.sources import named

    if bool(given["secret"]) == given["plain"]:
        raise UsageError(
            "--yaml: name a Secret with token, tls.crt and tls.key (--secret), or say --plain, by "
            "which whoever reaches the pods may ask."
        )
    check_namespace(given["namespace"], "--namespace")
    found = [named(each) for each in (*models, *follow)]
    arguments = []
    for place, (name, where) in enumerate(found):
        manifests.check_place(where)
        arguments += ["--follow"] if place >= len(models) else []
        arguments.append(f"{name}={where}")
    for flag in sorted(flags_given() - _OF_YAML - _NOT_IN_PODS):
        value = given[flag]
        arguments += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
    wanted = manifests.Wanted(
        name=given["name"] or found[0][0].lower().replace("_", "-").replace(".", "-"),
        image=given["image"] or BASE_IMAGE,
        arguments=arguments,
        replicas=given["replicas"],
        target_cpu=given["target_cpu"] or 0,
        max_unavailable=given["max_unavailable"] or 0,
        pod_user=given["pod_user"],
        spec=Spec.read(given["cluster_spec"]),
        request=given["resource_request"],
        limit=given["resource_limit"],
        volume=given["volume"],
        secret=given["secret"],
        namespace=given["namespace"],
    )
    return manifests.as_yaml(wanted)


def _set_threads(given: dict[str, Any]) -> None:
    import torch

    torch.set_num_threads(given["torch_threads"] or cores.share(given["threads"], spare=1))


def _place(given: dict[str, Any]) -> Place:
    from ..common.listen import own_host
    from ..common.web import Tls
    from ..serve.server import Place

    return Place(
        host=own_host(),
        http_port=given["http_port"],
        grpc_port=given["grpc_port"],
        token=token_of(given["token_file"], _TOKEN_VARIABLE),
        tls=Tls(given["tls_cert"], given["tls_key"], given["tls_client_ca"]),
        plain=given["plain"],
    )


def _terms(given: dict[str, Any]) -> Terms:
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
