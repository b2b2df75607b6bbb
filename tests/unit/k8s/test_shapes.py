"""A part of a pod of another kind than it has to be is one sentence, which names it."""

from __future__ import annotations

from typing import Any

import pytest

from edl.common.errors import UsageError
from edl.common.settings import JobSettings
from edl.k8s import pods
from edl.k8s.job import templates, wanted

from .edljobs import edljob


def pod(**fields: Any) -> dict[str, Any]:
    return {"worker": {"podTemplate": {"spec": fields}}}


def edl(**fields: Any) -> dict[str, Any]:
    return pod(containers=[{"name": "edl", **fields}])


POD = "spec.worker.podTemplate"
EDL = f"{POD}.spec.containers[0]"
MISSHAPEN = [
    (pod(containers={"name": "edl"}), f"{POD}.spec.containers is a mapping, and must be a list."),
    (pod(containers=["edl"]), f"{EDL} is a text, and must be a mapping."),
    (pod(containers=[None]), f"{EDL} is null, and must be a mapping."),
    (pod(containers=[{"name": 7}]), f"{EDL}.name is a number, and must be a text."),
    (pod(initContainers={"a": 1}), f"{POD}.spec.initContainers is a mapping, and must be a list."),
    (pod(volumes={"name": "v"}), f"{POD}.spec.volumes is a mapping, and must be a list."),
    (pod(volumes=[{"emptyDir": {}}]), f"{POD}.spec.volumes[0] is without name."),
    (
        pod(volumes=[{"name": "v", "persistentVolumeClaim": "c"}]),
        f"{POD}.spec.volumes[0].persistentVolumeClaim is a text, and must be a mapping.",
    ),
    (
        pod(volumes=[{"name": "v", "persistentVolumeClaim": {}}]),
        f"{POD}.spec.volumes[0].persistentVolumeClaim is without claimName.",
    ),
    (pod(tolerations={"key": "a"}), f"{POD}.spec.tolerations is a mapping, and must be a list."),
    (pod(tolerations=["a"]), f"{POD}.spec.tolerations[0] is a text, and must be a mapping."),
    (pod(nodeSelector=["a"]), f"{POD}.spec.nodeSelector is a list, and must be a mapping."),
    (pod(affinity="near"), f"{POD}.spec.affinity is a text, and must be a mapping."),
    (edl(env={"A": "1"}), f"{EDL}.env is a mapping, and must be a list."),
    (edl(env=[{"value": "1"}]), f"{EDL}.env[0] is without name."),
    (edl(env=[{"name": "A", "valueFrom": 7}]), f"{EDL}.env[0].valueFrom is a number, and must be"),
    (edl(command=["a", None]), f"{EDL}.command[1] is null, and must be a text."),
    (edl(env=[None]), f"{EDL}.env[0] is null, and must be a mapping."),
    (
        pod(dnsConfig={"searches": ["a", None]}),  # not in the table
        f"{POD}.spec.dnsConfig.searches[1] is null: take it out of the list.",
    ),
    (edl(resources=["cpu"]), f"{EDL}.resources is a list, and must be a mapping."),
    (edl(volumeMounts=[{"name": "v"}]), f"{EDL}.volumeMounts[0] is without mountPath."),
    ({"worker": {"podTemplate": {"spec": "a"}}}, f"{POD}.spec is a text, and must be a mapping."),
    ({"worker": {"podTemplate": ["a"]}}, f"{POD} is a list, and must be a mapping."),
    (
        {"worker": {"podTemplate": {"metadata": ["a"]}}},
        f"{POD}.metadata is a list, and must be a mapping.",
    ),
    (
        {"worker": {"podTemplate": {"metadata": {"labels": ["a"]}}}},
        f"{POD}.metadata.labels is a list, and must be a mapping.",
    ),
    (
        {"worker": {"podTemplate": {"metadata": {"annotations": "a"}}}},
        f"{POD}.metadata.annotations is a text, and must be a mapping.",
    ),
    ({"volumes": [{"emptyDir": {}}]}, "spec.volumes[0] is without name."),
    ({"volumeMounts": {"name": "v"}}, "spec.volumeMounts is a mapping, and must be a list."),
    ({"jobVolume": "c"}, "spec.jobVolume is a text, and must be a mapping."),
    ({"imagePullSecrets": ["a"]}, "spec.imagePullSecrets[0] is a text, and must be a mapping."),
    ({"worker": "four"}, "spec.worker is a text, and must be a mapping."),
]


@pytest.mark.parametrize(("spec", "said"), MISSHAPEN, ids=lambda each: str(each)[-60:])
def test_a_part_of_another_kind_than_a_pods_is_named(spec, said):
    """Broken once: AttributeError("'str' object has no attribute 'get'")."""
    with pytest.raises(UsageError) as found:
        wanted(edljob(**spec))
    with pytest.raises(UsageError) as scaled:
        templates(edljob(**spec))

    assert str(found.value).startswith(said)
    assert str(scaled.value).startswith(said)


@pytest.mark.parametrize(
    ("overlays", "said"),
    [
        ({"worker": {"volumes": {"name": "v"}}}, "worker.spec.volumes is a mapping, and must be a"),
        ({"pod": {"metadata": {"labels": ["a"]}}}, "pod.metadata.labels is a list, and must be a"),
        ({"worker_low": {"spec": "a"}}, "worker_low.spec is a text, and must be a mapping."),
    ],
)
def test_a_part_of_a_cluster_spec_of_another_kind_is_named(overlays, said):
    """Broken once: a traceback of `edl submit`."""
    with pytest.raises(UsageError) as found:
        pods.templates(JobSettings(job_name="demo", image_name="edl:1"), overlays)

    assert str(found.value).startswith(f"--cluster_spec: {said}")
