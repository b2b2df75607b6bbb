"""`edl serve --yaml`, as a real API server takes it, and its pods."""

import json

import numpy as np
import pytest
import torch
from tools.kube_objects import IMAGE, make_pod
from tools.trained import records_of, train

import edl
from edl.k8s.outside.cluster_spec import Spec
from edl.serve.manifests import Wanted, as_yaml

MODEL = "ctr=/models/ctr/checkpoints"
VOLUME = "claim_name=models,mount_path=/models,read_only=true"

ON_SPOT = Spec(
    layers={
        "serve": {
            "nodeSelector": {"pool": "spot"},
            "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
        }
    }
)


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(
            "ctr", "edl:test", [MODEL], volume=VOLUME, replicas="2:5", target_cpu=60, spec=ON_SPOT
        ),
        Wanted("ctr", "edl:test", [MODEL], secret="keys", limit="cpu=2,memory=4096Mi"),
        Wanted("ctr", "edl:test", [MODEL], replicas="3", pod_user="any"),
    ],
    ids=["by need", "secret", "several"],
)
def test_a_cluster_takes_all_that_is_printed(namespace, tmp_path, wanted):
    file = tmp_path / "serve.yaml"
    file.write_text(as_yaml(wanted))

    said = namespace.kubectl(
        "apply", "--dry-run=server", "--validate=true", "--filename", str(file)
    )

    least, most = wanted.bounds
    kinds = ["deployment.apps", "service"]
    kinds += ["poddisruptionbudget.policy"] * (most > 1)
    kinds += ["horizontalpodautoscaler.autoscaling"] * (least < most)
    assert [f"{kind}/ctr created (server dry run)" for kind in kinds] == said.splitlines()


ASK = """
import sys, time, urllib.request

url, deadline = "http://ctr:8000/v2/models/ctr/infer", time.monotonic() + 60
while True:
    try:
        with urllib.request.urlopen(url, sys.argv[1].encode(), timeout=60) as reply:
            print("answer", reply.read().decode())
        break
    except OSError:  # nobody is there yet, or the one that was asked has no model yet
        assert time.monotonic() < deadline, "nobody was ready"
        time.sleep(0.2)
"""


def test_its_pods_answer_by_its_service_as_the_checkpoint_does(namespace, folder):
    """Process nodes know no probes, so a pod is asked before it has its model, and says so.

    Broken once: (1) the Service chose other labels, so nobody was behind it; (2) the pods were told
    no host, so that they listened on their own loopback alone."""
    made = train(folder / "made", 2, model_def="deepfm", dim=4, hidden=8)
    records = records_of(made.definition, np.arange(20))
    np.savez(folder / "few.npz", **records)
    columns = {name: records[name] for name in made.definition.module.COLUMNS}
    namespace.claim("models", folder)
    arguments = [f"ctr={made.checkpoint}", "--data", str(folder / "few.npz"), "--torch_threads=1"]
    volume = f"claim_name=models,mount_path={folder},read_only=true"
    namespace.apply(as_yaml(Wanted("ctr", IMAGE, arguments, replicas="2", volume=volume)))
    inputs = [
        {"name": name, "datatype": "INT64", "shape": [20], "data": column.tolist()}
        for name, column in columns.items()
    ]
    namespace.apply(make_pod("asker", "python", "-c", ASK, json.dumps({"inputs": inputs})))

    line = namespace.wait_log("asker", "answer ")

    with torch.inference_mode():
        features, _ = made.definition.feed(columns, "predict")
        expected = edl.load(made.checkpoint)(features).tolist()
    (output,) = json.loads(line.partition("answer ")[2])["outputs"]
    assert expected == output["data"]
