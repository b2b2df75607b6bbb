"""`python -m edl.k8s`: the controller of the EdlJobs of one namespace, or of all.

It serves /metrics on EDL_METRICS_PORT from its first moment on, which is its probe too, and acts
once it holds the Lease `edl-controller`: another one of the same namespace waits. Beside one of all
namespaces none of another namespace begins. Any thread's failure ends the process, so that whoever
keeps it running starts it again; so does the loss of the Lease. SIGTERM ends it in order.

Masters get the image that it has itself, whose code is the installer's (--master_image where it is
in no pod), and all pods the user of EDL_POD_USER (--pod_user); EDL_ALLOW says what EdlJobs may ask
for besides what harms nobody (allowed.py).
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence

from ..common import log as logs
from ..common.errors import EdlError, PeerError, UsageError
from ..common.listen import serve_metrics
from ..common.process import end_with
from . import holders, names, pods
from .allowed import Installed
from .api import Api, Object
from .controller import Controller, Metrics
from .leadership import Leadership

log = logging.getLogger("edl.k8s")

LEASE = names.CONTROLLER
CONTAINER = "controller"  # of its pod in the manifests
_LABELS = {
    "app.kubernetes.io/name": "edl",
    "app.kubernetes.io/component": "controller",
    "app.kubernetes.io/part-of": "edl",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m edl.k8s", description="The controller of EdlJobs."
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--namespace", default="", help="of the EdlJobs; default: the pod's, or the kubeconfig's"
    )
    where.add_argument(
        "--all_namespaces",
        action="store_true",
        help="all EdlJobs of the cluster, by the ClusterRoles of the manifests' all-namespaces",
    )
    parser.add_argument(
        "--master_image", default="", help="image of all masters; default: the one of this pod"
    )
    parser.add_argument("--log_level", default="info", choices=("debug", "info", "warning"))
    parser.add_argument("--log_format", default="text", choices=("text", "json"))
    given = parser.parse_args(arguments)
    logs.configure(given.log_level, given.log_format, "controller")
    try:
        return run(given.namespace, given.all_namespaces, given.master_image)
    except EdlError as error:
        print(f"edl: error: {error}", file=sys.stderr)
        return error.exit_code


def run(namespace: str, everywhere: bool, image: str) -> int:
    """Run until SIGTERM, or until it cannot go on; return the exit code.

    Raises EdlError where it cannot begin.
    """
    ended = threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    def failed(found: threading.ExceptHookArgs) -> None:
        log.critical("a thread failed", exc_info=found.exc_value)
        end(1)

    threading.excepthook = failed
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end(0))

    def refused(error: EdlError) -> None:
        log.critical("%s", error)
        end(error.exit_code)

    api = Api.connect(namespace, client=LEASE)
    api.connection.on_end = refused
    api.check_version()
    holders.check_alone(api, everywhere)
    installed = _installed(api, image)
    metrics = Metrics()
    _, address = serve_metrics(metrics.registry)
    serves = {holders.SERVES: holders.ALL if everywhere else holders.ONE}
    leadership = Leadership.of_service(api, LEASE, {**_LABELS, **serves})
    controller = Controller(api.inside("") if everywhere else api, metrics, installed=installed)
    where = "all namespaces" if everywhere else f"the namespace {api.namespace}"
    log.info("controller of %s metrics=%s; waiting for the lease %s", where, address, LEASE)
    leading = threading.Thread(
        target=_lead, args=(leadership, controller, metrics, ended, end), name="lead", daemon=True
    )
    leading.start()
    ended.wait()
    controller.close()
    leadership.close()
    api.close()
    return codes[0]


def _installed(api: Api, image: str) -> Installed:
    """Return what masters are made of, and what EdlJobs may ask for. Raises UsageError."""
    text, pod = os.environ.get("EDL_ALLOW", ""), os.environ.get("EDL_POD", "")
    user = os.environ.get("EDL_POD_USER") or Installed.pod_user
    pods.security_context(user, "EDL_POD_USER")
    if image:
        return Installed.parse(text, image=image, pod_user=user)
    found = api.get("Pod", pod) if pod else None
    if found is None:
        raise UsageError(
            "--master_image: this controller runs in no pod (EDL_POD names it) whose image masters "
            "could have: name one."
        )
    spec = found["spec"]
    container = _own(spec["containers"], pod)
    secrets = tuple(each["name"] for each in spec.get("imagePullSecrets") or [])
    policy = container.get("imagePullPolicy") or "IfNotPresent"
    found_in_pod = {"image": container["image"], "pull_policy": policy, "pull_secrets": secrets}
    return Installed.parse(text, pod_user=user, **found_in_pod)


def _own(containers: Sequence[Object], pod: str) -> Object:
    """Return this process's container: a webhook may have put others beside or before it."""
    found = [each for each in containers if each["name"] == CONTAINER]
    if not found and len(containers) > 1:
        raise UsageError(
            f"--master_image: the pod {pod} has no container named {CONTAINER} whose image masters "
            "could have: name it so, or name an image."
        )
    return (found or list(containers))[0]


def _lead(
    leadership: Leadership,
    controller: Controller,
    metrics: Metrics,
    ended: threading.Event,
    end: Callable[[int], object],
) -> None:
    """Act as soon as the Lease is ours."""

    def lost(why: str) -> None:
        log.warning("%s: this one ends", why)
        end(1)

    def fails(error: PeerError) -> None:
        log.warning("lease=%s -> not yet error=%r", LEASE, str(error))

    if not leadership.await_turn(ended, fails) or ended.is_set():
        return
    metrics.leads.set(1)
    log.info("has the lease")
    leadership.keep(lost)
    controller.start()


if __name__ == "__main__":
    end_with(main)
