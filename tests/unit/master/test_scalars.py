"""Event files that TensorBoard reads, written without it."""

import math
from pathlib import Path

import pytest

from edl.common.errors import UsageError
from edl.common.event_file import EventFile

pytestmark = pytest.mark.fast

tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def test_tensorboard_reads_what_was_added(tmp_path):
    file = EventFile(tmp_path / "new" / "tensorboard")
    points = [("loss/train", 0.5, 3), ("eval/ä", math.nan, 0), ("x", 1e300, 2**40), ("x", -2.25, 1)]
    for tag, value, step in points:
        file.add(tag, value, step)
    file.close()

    events = tensorboard.EventAccumulator(str(tmp_path / "new" / "tensorboard"))
    events.Reload()

    read = [(tag, e.value, e.step) for tag in events.Tags()["scalars"] for e in events.Scalars(tag)]
    expected = [(t, math.inf if v > 1e38 else v, s) for t, v, s in points]
    assert sorted(map(str, expected)) == sorted(map(str, read))


def test_a_folder_that_cannot_be_written_is_one_sentence():
    with pytest.raises(UsageError, match="--output: /proc/x cannot be written"):
        EventFile(Path("/proc/x"))
