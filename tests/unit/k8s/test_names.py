"""Names, quantities, resources and volumes."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.common.errors import UsageError
from edl.k8s import names

pytestmark = pytest.mark.fast

JOBS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?", fullmatch=True)


@given(JOBS, st.sampled_from(["worker", "server"]), st.integers(0, 10**6), st.uuids())
def test_name_of_a_pod_is_a_dns_label_and_of_one_incarnation(job, role, index, uid):
    incarnation = uid.hex[:12]

    name = names.pod_name(job, role, index, incarnation)

    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name)
    assert name == names.pod_name(job, role, index, incarnation)
    assert name != names.pod_name(job, role, index, uid.hex[1:13] + "0")
    assert name != names.pod_name(job, role, index + 1, incarnation)


def test_quantities_are_numbers():
    texts = ["2", "500m", "4Gi", "1.5Gi", "128974848", "129e6", "0.1", "1k"]

    found = [names.quantity(text, "x") for text in texts]

    assert found == [
        Decimal(2),
        Decimal("0.5"),
        4 * 2**30,
        3 * 2**29,
        128974848,
        Decimal("129e6"),
        Decimal("0.1"),
        1000,
    ]


@given(st.integers(1, 2**50))
def test_bytes_as_a_quantity_are_exact(number):
    assert names.quantity(names.as_quantity(number), "x") == number


@pytest.mark.parametrize("text", ["", "4 GB", "4gb", "-1", "Gi", "1.2.3", "0x10"])
def test_no_quantity_is_told_with_the_flag(text):
    with pytest.raises(UsageError, match="--flag: .* is no quantity"):
        names.quantity(text, "--flag")


def test_resources_in_elasticdls_words():
    found = names.resources("cpu=1, memory=4096Mi,gpu=2,disk=10Gi,amd.com/gpu=1", "--flag")

    assert found == {
        "cpu": "1",
        "memory": "4096Mi",
        "nvidia.com/gpu": "2",
        "ephemeral-storage": "10Gi",
        "amd.com/gpu": "1",
    }


@pytest.mark.parametrize("text", ["cpus=1", "cpu", "cpu=1,cpu=2", "memory=4GB", "cpu=one"])
def test_wrong_resources_are_refused_with_the_flag(text):
    with pytest.raises(UsageError, match="--flag"):
        names.resources(text, "--flag")


def test_volumes_in_elasticdls_words():
    text = (
        "claim_name=c,mount_path=/p,sub_path=s;host_path=/h,type=Directory,mount_path=/q;"
        "claim_name=c,mount_path=/r,read_only=true;config_map=m,mount_path=/d"
    )

    volumes, mounts = names.volumes(text, "--volume")

    assert volumes == [
        {"name": "volume-0", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "volume-1", "hostPath": {"path": "/h", "type": "Directory"}},
        {"name": "volume-2", "configMap": {"name": "m"}},
    ]
    assert mounts == [
        {"name": "volume-0", "mountPath": "/p", "subPath": "s"},
        {"name": "volume-1", "mountPath": "/q"},
        {"name": "volume-0", "mountPath": "/r", "readOnly": True},
        {"name": "volume-2", "mountPath": "/d"},
    ]


@pytest.mark.parametrize(
    "text",
    [
        "claim_name=c",
        "claim_name=c,mount_path=relative",
        "mount_path=/p",
        "host_path=/h,type=Socket,mount_path=/q",
        "claim_name=c,host_path=/h,mount_path=/p",
        "claim_name=c,mount_path=/p,mount_path=/q",
        "claim=c,mount_path=/p",
    ],
)
def test_wrong_volumes_are_refused_with_the_flag(text):
    with pytest.raises(UsageError, match="--volume"):
        names.volumes(text, "--volume")
