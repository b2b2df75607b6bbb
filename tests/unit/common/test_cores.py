"""The cores of a process: its affinity, its cgroups' quotas, and what OMP_NUM_THREADS says."""

import pytest

from edl.common import cores

pytestmark = pytest.mark.fast

V1 = "11:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a function that makes a machine of 64 cores with these cgroups."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _pid: set(range(64)))
    monkeypatch.setattr(cores, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "_MOUNT", tmp_path / "mount")

    def make(membership="", **files):
        (tmp_path / "cgroup").write_text(membership)
        for name, text in files.items():
            path = tmp_path / "mount" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return make


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("", {}, 64),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "9900000 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "nonsense\n"}, 64),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "50000 10000"}, 3),
        ("0::/of/the/host\n", {"cpu.max": "400000 100000"}, 4),
        (V1, {"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        (
            V1,
            {
                "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "500000",
                "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
            },
            5,
        ),
    ],
)
def test_usable_cores_are_no_more_than_the_quota_of_each_cgroup(
    machine, membership, files, expected
):
    machine(membership, **files)

    assert expected == cores.usable()


def test_usable_cores_are_those_of_the_affinity(machine, monkeypatch):
    machine()
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _pid: {17})

    assert 1 == cores.usable()


def test_without_cgroups_they_are_those_of_the_affinity(machine, tmp_path):
    assert 64 == cores.usable()


@pytest.mark.parametrize(
    ("processes", "how", "openmp", "expected"),
    [
        (1, {}, None, 8),
        (3, {}, None, 2),
        (9, {}, None, 1),
        (0, {}, None, 8),
        (2, {}, "3", 3),
        (2, {}, "6,2", 4),
        (2, {}, "0", 4),
        (2, {}, "many", 4),
        (2, {"spare": 1}, None, 3),
        (4, {"own_quota": True}, None, 8),
        (4, {"own_quota": True}, "5", 5),
    ],
)
def test_a_share_is_an_equal_part_of_the_cores_or_less(
    machine, monkeypatch, processes, how, openmp, expected
):
    machine("0::/\n", **{"cpu.max": "800000 100000"})
    if openmp is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", openmp)

    assert expected == cores.share(processes, **how)


def test_pods_without_a_quota_share_their_node(machine):
    machine()

    assert 16 == cores.share(4, own_quota=True)
