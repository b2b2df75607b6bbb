"""Kueue's own manifests as one file for the tests: `kubectl kustomize config/default` comes in."""

import sys

import yaml

found = [one for one in yaml.safe_load_all(sys.stdin) if one]
for each in found:
    if each["kind"] == "Deployment":
        (container, *_) = each["spec"]["template"]["spec"]["containers"]
        container |= {
            "command": ["@BIN@/kueue"],
            "image": "kueue",
            "imagePullPolicy": "IfNotPresent",
        }
# The cluster has no aggregation layer, and an APIService that does not answer holds up the end of
# namespaces: without Kueue's visibility API.
served = [one for one in found if one["kind"] != "APIService"]
yaml.safe_dump_all(served, sys.stdout, sort_keys=False, width=200)
