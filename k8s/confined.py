"""The master's pod where users may not do what a master may: the check apart, no token for others.

Pure, plain dicts. A master's token can make pods. So its container has the installer's image and
no code of the job's; what is the user's code runs before it, in the container `check`, as a worker
would and without a token (k8s/check.py).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from ..common.errors import UsageError
from . import names, pods
from .api import Object

TOKEN_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
_OF_JOB = ("job", "settings")  # volumes of a master that the check reads
_FOLDERS = ("job", "scratch")  # the job's folder, of whoever has which


def confined(
    templates: Mapping[str, Object],
    owner: str,
    image: str,
    pull_policy: str,
    pull_secrets: Sequence[str],
) -> Object:
    """Make the master's template for a cluster whose users may not do what a master may.

    The master's container, and no other, has the token: its image is the installer's. The
    definition is checked before by a container that is as a worker's and has no token. `owner` is
    the uid whose job folder may hold an earlier check.
    """
    made, worker = copy.deepcopy(templates["master"]), copy.deepcopy(templates["worker"])
    spec, main, check = made["spec"], pods.container_of(made), pods.container_of(worker)
    for probe in ("startupProbe", "livenessProbe", "ports"):
        del check[probe]
    theirs = {
        each["name"]: each for each in worker["spec"]["volumes"] if each["name"] not in _FOLDERS
    }
    for each in spec["volumes"]:
        if theirs.get(each["name"], each) != each:
            raise UsageError(
                f"podTemplate: the volume {each['name']} is one thing in spec.master and another "
                "in spec.worker: give them different names."
            )
        theirs.pop(each["name"], None)
    own: list[Object] = [{"name": name, "emptyDir": {}} for name in ("checked", "no-token")]
    spec["volumes"] += [*theirs.values(), *own]
    checked = {"name": "checked", "mountPath": pods.CHECKED_DIR}
    check["volumeMounts"] = [
        *(each for each in check["volumeMounts"] if each["name"] not in _FOLDERS),
        *({**each, "readOnly": True} for each in main["volumeMounts"] if each["name"] in _OF_JOB),
        checked,
        # where there is a mount already, no token is mounted
        {"name": "no-token", "mountPath": TOKEN_DIR, "readOnly": True},
    ]
    spec["initContainers"] = [
        {
            **check,
            "name": names.CHECK,
            "command": ["python", "-m", "edl.k8s.check"],
            "args": [pods.SETTINGS_DIR, pods.CHECKED_DIR, pods.JOB_DIR, owner],
            "resources": main["resources"],
        }
    ]
    for each in spec["containers"]:
        if each is not main:  # beside it, where an installer has allowed that: no token for them
            mounts = each.setdefault("volumeMounts", [])
            mounts.append({"name": "no-token", "mountPath": TOKEN_DIR, "readOnly": True})
    main |= {"image": image, "imagePullPolicy": pull_policy}
    main["env"].append({"name": "PYTHONSAFEPATH", "value": "1"})  # no code from where it starts
    main["args"] += ["--checked", pods.CHECKED_DIR]
    main["volumeMounts"].append({**checked, "readOnly": True})
    if pull_secrets:
        secrets = spec.setdefault("imagePullSecrets", [])
        secrets += [{"name": name} for name in pull_secrets if {"name": name} not in secrets]
    return made
