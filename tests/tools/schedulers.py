"""The controller and the scheduler of a test namespace, with the rights of the manifests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from tools import kube
from tools.kube_api import Object
from tools.kube_namespace import Namespace
from tools.kube_objects import IMAGE

MANIFESTS = Path(kube.ROOT) / "k8s" / "manifests"
BASE = MANIFESTS / "base"


def install(here: Namespace) -> None:
    """Apply the resource, the classes, and all roles."""
    here.cluster.apply(MANIFESTS / "chart/files/edljobs.yaml", BASE / "priority-classes.yaml")
    here.apply(BASE / "service-accounts.yaml")
    roles = [BASE / f"role-{name}.yaml" for name in ("master", "controller", "user")]
    for path in (*roles, MANIFESTS / "scheduler/role.yaml", MANIFESTS / "nodes/role.yaml"):
        here.apply(*(_inside(here, each) for each in yaml.safe_load_all(path.read_text())))


def _inside(here: Namespace, it: Object) -> Object:
    """Return an object of a manifest as it is in this namespace."""
    for subject in it.get("subjects", ()):
        subject["namespace"] = here.name
    if it["kind"].startswith("Cluster"):  # several namespaces of one cluster have their own
        it["metadata"]["name"] += f"-{here.name}"
        if "roleRef" in it:
            it["roleRef"]["name"] += f"-{here.name}"
    return it


def deployment() -> Object:
    """Return the scheduler's Deployment of the manifests, in this environment's image."""
    made = _deployment("scheduler", MANIFESTS / "scheduler/deployment.yaml")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["args"] += ["--every", "1"]
    return made


def controller(folder: Path) -> Object:
    """Return that of the controller, which lets EdlJobs mount this folder."""
    made = _deployment("controller", BASE / "controller.yaml")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    (allow,) = (each for each in container["env"] if each["name"] == "EDL_ALLOW")
    allow["value"] = yaml.safe_dump({"mounts": [f"{folder}*"]})
    return made


def _deployment(component: str, path: Path) -> Object:
    (made,) = (
        each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "Deployment"
    )
    labels = {"app.kubernetes.io/name": "edl", "app.kubernetes.io/component": component}
    made["metadata"]["labels"] = labels
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["image"] = IMAGE
    found: Object = made
    return found


@contextlib.contextmanager
def running(here: Namespace, folder: Path, *flags: str) -> Iterator[Path]:
    """Run a controller and `edl schedule serve` with these flags here; yield the latter's log."""
    allow = {"hostPaths": [f"{folder}*"], "mounts": [f"{folder}*"]}
    where = ("--namespace", here.name)
    commands = {
        "edl-controller": ("-m", "edl.k8s", *where, "--master_image", IMAGE),
        "edl-scheduler": ("-m", "edl", "schedule", "serve", *where, *flags),
    }
    processes = []
    with contextlib.ExitStack() as stack:
        for account, command in commands.items():
            log = stack.enter_context(open(folder / f"{account}.log", "w"))
            env = {
                **os.environ,
                "KUBECONFIG": str(here.kubeconfig(account)),
                "EDL_ALLOW": yaml.safe_dump(allow),
                "PYTHONUNBUFFERED": "1",
            }
            process = subprocess.Popen(
                [sys.executable, *command], env=env, stdout=log, stderr=log, cwd="/"
            )
            processes.append(process)
        try:
            yield folder / "edl-scheduler.log"
        finally:
            for process in processes:
                process.terminate()
            codes = [process.wait(30.0) for process in processes]
            for account in commands:  # pytest shows it where a test fails
                print((folder / f"{account}.log").read_text())
    assert codes == [0, 0], (folder / "edl-scheduler.log").read_text()
