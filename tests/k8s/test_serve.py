"""`edl serve --yaml`, as a real API server takes it, and its pods."""

import json

import numpy as np
import pytest
import torch
from tools.kube_objects import IMAGE, condition, make_pod
from tools.trained import records_of, train

import edl
from edl.serve.manifests import Wanted, as_yaml

MODEL = "ctr=/models/ctr/checkpoints"
VOLUME = "claim_name=models,mount_path=/models,read_only=true"


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted("ctr", "edl:test", [MODEL], volume=VOLUME, replicas=2),
        Wanted("ctr", "edl:test", [MODEL], secret="keys", limit="cpu=2,memory=4096Mi"),
    ],
    ids=["plain", "secret"],
)
def test_a_cluster_takes_the_deployment_and_the_service(namespace, tmp_path, wanted):
    file = tmp_path / "serve.yaml"
    file.write_text(as_yaml(wanted))

    said = namespace.kubectl(
        "apply", "--dry-run=server", "--validate=true", "--filename", str(file)
    )

    assert [
        "deployment.apps/ctr created (server dry run)",
        "service/ctr created (server dry run)",
    ] == said.splitlines()


ASK = """
import sys, urllib.request
request = urllib.request.Request("http://ctr:8000/v2/models/ctr/infer", sys.argv[1].encode())
print("answer", urllib.request.urlopen(request, timeout=60).read().decode())
"""


def test_pods_answer_by_the_service_and_one_without_a_model_replaces_none(namespace, folder):
    """Broken once: (1) the readiness probe asked for live, so the pod without a model took the
    place of the other; (2) the Service chose other labels, so nobody was behind it."""
    made = train(folder / "made", 2, model_def="deepfm", dim=4, hidden=8)
    records = records_of(made.definition, np.arange(20))
    np.savez(folder / "few.npz", **records)
    folder.chmod(0o755)  # for the image's user
    columns = {name: records[name] for name in made.definition.module.COLUMNS}
    namespace.claim("models", folder)

    def wanted(model):
        return Wanted(
            "ctr",
            IMAGE,
            [f"ctr={model}", "--data", str(folder / "few.npz"), "--torch_threads", "1"],
            request="cpu=1,memory=1024Mi",
            volume=f"claim_name=models,mount_path={folder},read_only=true",
        )

    def answer(name):
        inputs = [
            {"name": n, "datatype": "INT64", "shape": [20], "data": c.tolist()}
            for n, c in columns.items()
        ]
        namespace.apply(make_pod(name, "python", "-c", ASK, json.dumps({"inputs": inputs})))
        line = namespace.wait_log(name, "answer ")
        (output,) = json.loads(line.partition("answer ")[2])["outputs"]
        return output["data"]

    def ready_ones(pods):
        return {name for name, pod in pods.items() if condition(pod, "Ready") == "True"}

    mine = "app.kubernetes.io/instance=ctr"
    namespace.apply(as_yaml(wanted(made.checkpoint)))
    first = namespace.wait("pods", ready_ones, labels=mine, within_s=120.0)
    with torch.inference_mode():
        features, _ = made.definition.feed(columns, "predict")
        expected = edl.load(made.checkpoint)(features).tolist()
    assert expected == answer("before")

    namespace.apply(as_yaml(wanted(folder / "nothing")))
    (other,) = namespace.wait("pods", lambda pods: pods.keys() - first, labels=mine)
    namespace.wait_log(other, "nothing")
    assert expected == answer("after")
    assert first == ready_ones(namespace.objects("pods", mine))
