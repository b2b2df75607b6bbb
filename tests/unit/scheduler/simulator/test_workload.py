"""A workload is read as Pollux's authors wrote theirs, and a line that is no job is named."""

import re

import pytest

from edl.common.errors import UsageError
from edl.scheduler.simulator.workload import Arrival, read_workload

HEAD = "name,time,application,num_replicas,batch_size\n"


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "workload.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_workload(path, {"toy": None, "bert": None})

    return read


def test_jobs_come_in_the_order_of_their_times(read):
    assert read(HEAD + "b,70,toy,1,2\na,5.5,bert,1,2\n") == [
        Arrival("a", 5.5, "bert"),
        Arrival("b", 70.0, "toy"),
    ]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("a,5,toy,1,2\n,6,toy,1,2\n", "line 3: name is a word, not ''"),
        ("a,5,toy,1,2\na,6,toy,1,2\n", "line 3: name is one of its own, not again 'a'"),
        ("a,-5,toy,1,2\n", "line 2: time is a number of at least 0, not '-5'"),
        ("a,nan,toy,1,2\n", "line 2: time is a number of at least 0, not 'nan'"),
        ("a,inf,toy,1,2\n", "line 2: time is a number of at least 0, not 'inf'"),
        ("a,,toy,1,2\n", "line 2: time is a number of at least 0, not ''"),
        ("a,5,tot,1,2\n", "line 2: application is one of bert, toy, not 'tot'"),
        ("a,5\n", "line 2: the field 'application' is missing"),
        ("", "has no job"),
    ],
)
def test_lines_that_are_no_jobs_are_named(read, lines, said):
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        read(HEAD + lines)

    assert "workload.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,time\n", "line 1: there is no column 'application'"),
        ("", "line 1: there is no column 'name'"),
        (b"\xff\xfe", "cannot be read as a table"),
    ],
)
def test_files_that_are_no_workloads_are_named(read, text, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        read(text)


def test_no_file_is_told(tmp_path):
    with pytest.raises(UsageError, match="cannot be read as a table"):
        read_workload(tmp_path / "none.csv", {})
