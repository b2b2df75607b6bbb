"""A master that begins: the port at which it listens, and the check that it reads. Real sockets."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from tools.own import free_port

from edl.common.listen import own_host
from edl.common.settings import JobSettings
from edl.master.serve import _describe, _listen


@pytest.fixture
def listen(tmp_path):
    """Listen as a job's master does, after one that has listened at `before`."""
    made = []

    def begin(port, before):
        about = {"address": f"{own_host()}:{before}"}
        (tmp_path / "master.json").write_text(json.dumps(about))
        core = SimpleNamespace(settings=SimpleNamespace(lease_s=1.0))
        master = SimpleNamespace(core=core, front=None, group=None)
        made.append(_listen(master, "token", port, tmp_path))
        return int(made[-1].address.rpartition(":")[2])

    yield begin
    for server in made:
        server.stop(0.0)


def test_a_master_listens_at_the_port_that_is_said_whatever_the_last_one_had(listen):
    """In a pod the port is the one to which the Service leads: of this pod, not of the last one."""
    said, before = free_port(), free_port()

    assert listen(said, before) == said


def test_a_master_listens_where_the_last_one_has_unless_that_sleeps(listen):
    before = free_port()

    assert listen(0, before) == before
    assert listen(0, before) not in (0, before)  # the first one holds it


def test_what_a_master_before_has_read_of_the_check_is_read_again(tmp_path):
    """In a pod. Broken once: killed before it had begun its journal, it was followed by no other.

    The check of the next pod sees that the job has begun, and leaves nothing.
    """
    described = {"training": [["a", 8]], "has": []}
    (tmp_path / "describe.json").write_text(json.dumps(described))
    (tmp_path / "checked").mkdir()

    assert _describe(JobSettings(), tmp_path, None, tmp_path / "checked") == (described, 0)
