"""`edl.train` on a real control plane: the call of this machine, with a runtime and an image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from tools import kube
from tools.kube_objects import IMAGE
from tools.turns import in_turn
from torch.nn import functional

import edl
from edl.nn import Accuracy

MANIFESTS = Path(kube.ROOT) / "k8s" / "manifests" / "base"
LABELS = 3


def model():
    return torch.nn.Linear(4, LABELS)


def feed(records, mode):
    return torch.tensor(records["x"]), torch.tensor(records["label"])


def metrics():
    return {"accuracy": Accuracy()}


@in_turn(0)
def test_functions_that_were_typed_train_in_pods_as_they_do_here(
    cluster, namespace, folder, tmp_path, monkeypatch
):
    namespace.apply(MANIFESTS / "service-accounts.yaml", MANIFESTS / "role-master.yaml")
    cluster.apply(MANIFESTS / "priority-classes.yaml")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv("EDL_HOME", str(tmp_path))
    rng = np.random.default_rng(0)
    labels = rng.integers(0, LABELS, 600)
    x = 3.0 * np.eye(4)[labels] + rng.normal(size=(600, 4))
    np.savez(folder / "records.npz", x=x.astype(np.float32), label=labels)
    call = {
        "model": model,
        "loss": functional.cross_entropy,
        "feed": feed,
        "metrics": metrics,
        "optimizer": edl.nn.Adam(lr=0.05),
        "training_data": folder / "records.npz",
        "validation_data": folder / "records.npz",
        "num_workers": 1,
        "num_epochs": 2,
        "job_name": "typed",
    }
    pods = {"worker_resource_request": "cpu=1,memory=1024Mi"}
    pods |= {"ps_resource_request": "cpu=1,memory=1024Mi"}

    namespace.claims(folder)

    here = edl.train(**call)
    there = edl.train(
        **{**call, **pods},
        runtime="kubernetes",
        image=IMAGE,
        namespace=namespace.name,
        volume=f"claim_name=data,mount_path={folder}",
        checkpoint_dir=folder / "checkpoints",
    )

    job = edl.job("typed", runtime="kubernetes", namespace=namespace.name)
    assert ("done", "done", "done") == (here.state, there.state, job.status()["state"])
    assert here.metrics["accuracy"] > 0.9
    assert (here.metrics, here.history) == (there.metrics, there.history)
    owned = namespace.objects("configmaps")["edl-typed-definition"]["metadata"]
    assert "edl-typed" == owned["ownerReferences"][0]["name"]
