"""A job with metrics that are NaN or infinite: what is told of it is JSON for every language."""

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools.strict_json import strict

from edl.cli.screen import JsonScreen
from edl.common import finite
from edl.common.clock import FakeClock
from edl.dashboard.server import export
from edl.jobs.history import FILE, History, Reader
from edl.jobs.local import LocalJob, LocalJobs
from edl.launch.servicer import LookServicer
from edl.loggers import core
from edl.loggers.files import Jsonl
from edl.loggers.logger import DONE, Run
from edl.master.lookers import Lookers
from edl.proto import master_pb2 as pb

Edl = Callable[..., tuple[int, str, str]]
METRICS = {"auc": math.nan, "most": math.inf, "least": -math.inf, "auc/error_bound": 0.25}
BEST = {"metric": "most", "value": math.inf, "version": 1, "epoch": 0, "checkpoint": "/c"}
ODD: dict[str, Any] = {
    "job_name": "census",
    "state": "running",
    "command": "train",
    "exit_code": None,
    "started_s_ago": 42.0,
    "records_done": 50,
    "records_total": 100,
    "records_per_s": 9.5,
    "version": 608,
    "workers": [],
    "servers": [],
    "restarts": {"worker": 1, "server": 0, "master": 0},
    "events": [],
    "loss": math.nan,
    "metrics": METRICS,
    "evaluations": [{"version": 600, "epoch": 0, "metrics": METRICS}],
    "best": BEST,
    "minibatch": None,
    "gain": None,
}


def same(text: str) -> bool:
    """Tell whether a status is the odd one, in JSON that is strict and in what edl reads of it."""
    told, found = strict(text), finite.loads(text)
    nulls = {"auc": None, "most": None, "least": None, "auc/error_bound": 0.25}
    assert (None, nulls) == (told["loss"], told["metrics"])
    assert {"nan", "inf", "-inf"} == set(told["not_finite"].values())
    return repr([ODD[n] for n in ("loss", "metrics", "evaluations", "best")]) == repr(
        [found[n] for n in ("loss", "metrics", "evaluations", "best")]
    )


@pytest.fixture
def job(running: Callable[[str], Any]) -> Any:
    """Return the master of the job census, of a version that writes NaN as a token."""
    master = running("census")
    master.status = ODD
    return master


@pytest.mark.parametrize("command", ["status", "top"])
def test_of_one_job_programs_read_what_people_do(run: Edl, job: Any, command: str) -> None:
    code, out, _ = run(command, "census", "-o", "json")

    told = json.loads(out) if command == "status" else json.loads(out)["status"]
    said = {k.removeprefix("/status"): v for k, v in json.loads(out)["not_finite"].items()}
    said = {k: v for k, v in said.items() if not k.startswith("/scalars")}
    strict(out)
    assert 0 == code
    assert same(json.dumps({**told, "not_finite": said}))


def test_of_many_jobs_each_says_which_of_its_numbers_are_none(run: Edl, job: Any) -> None:
    for arguments in (("list", "-o", "json"), ("status", "-o", "json")):
        _, out, _ = run(*arguments)

        (told,) = strict(out)
        assert same(json.dumps(told))
    _, out, _ = run("top", "-o", "json")
    assert "nan" == strict(out)["not_finite"]["/jobs/0/loss"]


def test_people_read_nan_and_inf(run: Edl, job: Any) -> None:
    _, out, _ = run("status", "census")

    for words in ("loss nan", "auc nan", "most inf", "least -inf"):
        assert words in " ".join(out.replace("│", " ").split())
    _, out, _ = run("status", "census", "-o", "yaml")
    assert "auc: .nan" in out


def test_a_result_is_strict_and_read_back(tmp_path: Path) -> None:
    LocalJob(tmp_path).give_up(1, "its master is gone", ODD)

    assert same((tmp_path / "result.json").read_text())
    assert repr(METRICS) == repr(LocalJob(tmp_path).status()["metrics"])


def test_a_result_of_a_version_that_wrote_tokens_is_read(
    ended: Callable[..., LocalJob], run: Edl
) -> None:
    found = ended("old", {**ODD, "state": "done"})

    assert "NaN" in (found.folder / "result.json").read_text()
    assert repr(METRICS) == repr(found.status()["metrics"])


def test_masters_and_coordinators_answer_in_strict_json() -> None:
    class Told(Lookers):
        def __init__(self) -> None:
            """Look at nothing."""

        def status(self) -> dict[str, Any]:
            return ODD

    class Coordinator:
        def status(self, known_revision: int, wait_s: float) -> tuple[int, dict[str, Any]]:
            return 1, ODD

    launched: Any = LookServicer(Coordinator())  # type: ignore[arg-type]
    assert same(Told().as_json())
    assert same(launched.Status(pb.StatusRequest(), None).status_json)


def test_lines_of_json_are_strict() -> None:
    stream = io.StringIO()
    screen = JsonScreen(stream, FakeClock())
    screen.show(ODD)
    screen.end(ODD, 0)

    lines = [line for line in stream.getvalue().splitlines() if '"event": "event"' not in line]
    assert 2 == len(lines)
    assert all(map(same, lines))


def test_the_history_and_the_logger_jsonl_are_strict_and_nothing_is_lost(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.look(ODD, last=True)
    history.close()
    for line in (tmp_path / FILE).read_text().split("\n"):
        strict(line or "null")

    lines = Reader(tmp_path).lines()
    told, _ = core.tell(core.Cursor(), lines, 0)
    logger = Jsonl(None)
    logger.open(Run("run", "census", {"scale": math.inf}, {}, tmp_path, 0.0), {})
    logger.write(told)
    logger.finish(DONE)

    assert repr(METRICS) == repr(lines[0]["scalars"])
    head, evaluated, point, _ = map(strict, (tmp_path / "run.jsonl").read_text().splitlines())
    assert {"/settings/scale": "inf"} == head["not_finite"]
    assert {"/eval~1auc": "nan", "/eval~1most": "inf", "/eval~1least": "-inf"} == evaluated[
        "not_finite"
    ]
    assert {"/loss~1train": "nan"} == point["not_finite"]


def test_a_history_of_a_version_that_wrote_tokens_is_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"t": 1.0, "version": 3, "scalars": {"loss": NaN}}\n')

    assert math.isnan(Reader(tmp_path).lines()[0]["scalars"]["loss"])


def test_a_page_in_one_file_has_strict_json(tmp_path: Path, ended: Callable[..., LocalJob]) -> None:
    ended("census", {**ODD, "state": "done"})

    export(LocalJobs(), "census", tmp_path / "page.html")

    page = (tmp_path / "page.html").read_text()
    data = page.partition('id="edl-snapshot">')[2].partition("</script>")[0]
    assert "nan" == strict(data)["not_finite"]["/status/loss"]
