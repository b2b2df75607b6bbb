"""`edl serve --yaml`, as a real API server takes it."""

import pytest

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
