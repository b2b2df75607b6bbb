"""Files that are written: whatever a process that was killed left after its cursor goes."""

import json

import pytest

from edl.loggers.core import Told
from edl.loggers.files import Jsonl, TensorBoard
from edl.loggers.logger import DONE, FAILED, Run

pytestmark = pytest.mark.fast

TOLD = [Told(0, 0, 0.5, text="starting"), Told(7, 7, 1.0, {"loss/train": 0.5, "eval/auc": 0.7})]


def run_of(folder, job="demo"):
    return Run("demo-1", job, {"seed": 0, "params": {"a": 1}}, {"edl.job": job}, folder, 1e9)


def lines(folder):
    return [json.loads(line) for line in (folder / "demo-1.jsonl").read_text().splitlines()]


def series(folder):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator(str(folder / "tensorboard" / "demo-1"))
    accumulator.Reload()
    tags = accumulator.Tags()
    texts = {
        tag: [(e.step, e.tensor_proto.string_val[0].decode()) for e in accumulator.Tensors(tag)]
        for tag in tags["tensors"]
    }
    curves = {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in tags["scalars"]}
    return texts | curves


def written(logger, run, state, told):
    assert {} == logger.open(run, state)
    logger.write(told)
    state = logger.state()
    logger._file.close()
    return state


def test_a_run_is_lines_of_json(tmp_path):
    logger = Jsonl(None)
    logger.open(run_of(tmp_path), {})
    logger.write(TOLD)
    logger.finish(DONE)

    head, event, point, end = lines(tmp_path)
    assert ("demo-1", "demo", {"a": 1}) == (head["run"], head["job"], head["settings"]["params"])
    assert {"step": 0, "t": 0.5, "event": "starting"} == event
    assert {"step": 7, "t": 1.0, "loss/train": 0.5, "eval/auc": 0.7} == point
    assert {"job": "demo", "end": "done"} == end


def test_tensorboard_shows_curves_events_and_settings(tmp_path):
    logger = TensorBoard(tmp_path)
    logger.open(run_of(tmp_path / "else"), {})
    logger.write(TOLD)
    logger.finish(DONE)

    found = series(tmp_path)
    assert [(0, "starting")] == found["events"]
    assert [(7, 0.5)] == found["loss/train"]
    assert "| seed | `0` |" in found["settings/demo"][0][1]


@pytest.mark.parametrize("kind", [Jsonl, TensorBoard])
@pytest.mark.parametrize("torn", [b"", b"torn"])
def test_what_was_written_after_the_cursor_is_cut_off_and_written_again(tmp_path, kind, torn):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    first = written(kind(killed), run_of(killed), {}, TOLD[:1])
    written(kind(killed), run_of(killed), first, TOLD[1:])
    (path,) = (p for p in killed.rglob("*") if p.is_file())
    with open(path, "ab") as file:
        file.write(torn)
    written(kind(killed), run_of(killed), first, TOLD[1:])

    written(kind(whole), run_of(whole), {}, TOLD)
    (expected,) = (p for p in whole.rglob("*") if p.is_file())
    assert expected.read_bytes() == path.read_bytes()


def test_an_end_that_was_said_is_not_said_again_and_another_is(tmp_path):
    state = {}
    for outcome, told in ((FAILED, TOLD), (FAILED, []), (DONE, []), (DONE, TOLD[1:])):
        logger = Jsonl(tmp_path)
        logger.open(run_of(tmp_path), state)
        if told:
            logger.write(told)
        logger.finish(outcome)
        state = logger.state()

    assert ["failed", "done", "done"] == [each["end"] for each in lines(tmp_path) if "end" in each]
    assert 1 == sum("settings" in each for each in lines(tmp_path))


def test_the_next_job_of_a_run_says_its_own_settings_in_the_same_file(tmp_path):
    state = written(Jsonl(tmp_path), run_of(tmp_path), {}, TOLD[:1])
    written(Jsonl(tmp_path), run_of(tmp_path, "demo-r1"), state, TOLD[1:])

    assert ["demo", "demo-r1"] == [each["job"] for each in lines(tmp_path) if "settings" in each]


def test_a_file_without_a_cursor_is_gone_on_with_and_never_cut(tmp_path):
    (tmp_path / "demo-1.jsonl").write_text('{"mine": 1}\n')
    written(Jsonl(tmp_path), run_of(tmp_path), {}, TOLD)

    assert {"mine": 1} == lines(tmp_path)[0]
