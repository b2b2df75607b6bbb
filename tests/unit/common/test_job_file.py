"""The file of --config."""

from pathlib import Path

import pytest

from edl.common import job_file
from edl.common.errors import UsageError
from edl.common.settings import spellings

pytestmark = pytest.mark.fast


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return str(path)


def test_settings_come_with_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "# a job\nnum-workers: 4\n\nnum_ps_pods: 2\nmodel_params: {lr: 1e-3}\n")

    found = job_file.read(path, spellings())

    assert found == {
        "num_workers": (4, f"{path}:2"),
        "num_ps": (2, f"{path}:4"),
        "model_params": ({"lr": 0.001}, f"{path}:5"),
    }


def test_empty_file_says_nothing(tmp_path: Path) -> None:
    assert {} == job_file.read(write(tmp_path, "# nothing\n"), spellings())


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("num_workers: 1\nnum_wrokers: 2\n", "job.yaml:2: .*did you mean 'num_workers'"),
        ("num_ps: 1\nnum-ps-pods: 2\n", "job.yaml:2: .* given already, at .*job.yaml:1"),
        ("- 1\n", "must hold settings"),
        ("a: [1\n", "is not YAML"),
        ("seed: !!python/object:os.system x\n", "job.yaml:1: could not determine a constructor"),
        ("qqqq: 1\n", "lists them"),
    ],
)
def test_mistake_is_told_with_its_line(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(UsageError, match=part):
        job_file.read(write(tmp_path, text), spellings())


def test_file_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="Cannot read --config /no/such.yaml"):
        job_file.read("/no/such.yaml", spellings())
