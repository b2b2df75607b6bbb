"""What is played comes out of a file, of a generator, or of jobs of our own."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tools.reports import make_report
from tools.traced import write_traces

from edl.common import report
from edl.common.errors import UsageError
from edl.common.report import Sample
from edl.scheduler.policy import make_policy
from edl.scheduler.simulator.generated import philly
from edl.scheduler.simulator.play import Rules, cluster, play
from edl.scheduler.simulator.source import read

POLLUX = ("ncf", "cifar10", "deepspeech2", "bert", "yolov3", "imagenet")


def test_generated_jobs_have_the_published_shares():
    jobs = philly(POLLUX, seed=1, jobs=20_000)
    kinds, hours = Counter(j.application for j in jobs), Counter(j.submitted // 3600 for j in jobs)

    assert 0.38 < kinds["cifar10"] / 20_000 < 0.40
    assert 0.015 < kinds["imagenet"] / 20_000 < 0.025
    assert 1.9 < hours[5] / hours[0] < 2.1  # 287 and 144 of 1,280
    assert sorted(hours) == list(range(8))
    assert [job.submitted for job in jobs] == sorted(job.submitted for job in jobs)
    assert philly(POLLUX, 1) == philly(POLLUX, 1) != philly(POLLUX, 2)
    assert len(philly(POLLUX, 1)) == 160


def test_shares_are_among_the_applications_that_there_are():
    assert {"ncf"} == {job.application for job in philly(["ncf", "toy"], 0)}
    with pytest.raises(UsageError, match="the traces have none"):
        philly(["toy"], 0)


def test_sias_tables_are_read_by_the_kind_of_machine(tmp_path):
    folder = write_traces(tmp_path / "traces" / "toy")
    for name in ("placements", "scalability"):
        shutil.copy(folder / f"{name}.csv", folder / f"{name}-aws.csv")
    (folder / "placements.csv").write_text("wrong")
    path = tmp_path / "workload.csv"
    path.write_text("name,time,application,num_replicas,batch_size\na,487.66,toy,8,320\n")

    (arrival,), applications = read(str(path), str(tmp_path / "traces"), 0, machines="aws")

    assert (arrival.application, arrival.submitted) == ("toy", 487.66)
    assert applications["toy"].step_s((2,), 5) == (0.6, 0.1)
    with pytest.raises(UsageError, match=r"no folder of an application with a file placements-rtx"):
        read(str(path), str(tmp_path / "traces"), 0, machines="rtx")


@pytest.fixture
def jobs(tmp_path):
    """Return jobs(name, **report): a folder of a job that ended with it."""

    def make(name, came=0, workers=1, **changed):
        folder = tmp_path / "jobs" / name
        folder.mkdir(parents=True)
        (folder / "settings.json").write_text("{}")
        os.utime(folder / "settings.json", (1_000_000 + came, 1_000_000 + came))
        told = report.write(make_report(**{"model": None, **changed}))
        rows = [{"index": i} for i in range(workers)]
        status = {"job_name": name, "state": "done", "report": told, "workers": rows}
        (folder / "result.json").write_text(json.dumps(status))
        return str(tmp_path / "jobs")

    return make


SAMPLES = (Sample(1, 1, 1, 10, 100.0, 20.0, 5), Sample(1, 2, 1, 10, 180.0, 20.0, 5))


def test_jobs_of_our_own_take_as_long_as_their_records_at_the_speed_that_was_measured(jobs):
    jobs("late", came=30, workers=2, records_total=18_000, samples=SAMPLES)
    folder = jobs("first", workers=1, records_total=10_000, samples=SAMPLES[:1])
    rules = Rules(every_s=1.0, restart_s=0.0, known="exact", by_events=True)

    arrivals, applications = read(folder, None, 0)
    found = play(
        arrivals, applications, cluster(1, 4), make_policy("finish").plan, rules, lambda: 0.0
    )

    assert [(job.name, job.submitted) for job in arrivals] == [("first", 0.0), ("late", 30.0)]
    times = {each.name: each.ended - each.submitted for each in found.jobs}
    assert times["first"] == pytest.approx(100.0)  # 10,000 at 100 a second
    assert 100.0 <= times["late"] < 103.0  # 18,000 at 180: with two once it has profiled one


def test_beyond_what_was_seen_nothing_is_faster(jobs):
    folder = jobs("a", workers=8, records_total=1000, samples=SAMPLES)

    it = read(folder, None, 0)[1]["a"]
    rates = [sum(p) * 10 / it.step_s(p, 10)[0] for p in ((1,), (2,), (4,), (1, 2))]

    assert np.allclose(rates, [100, 180, 180, 180])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"samples": ()}, "has left no throughput, or has no end: take it out of the folder."),
        ({"records_total": None}, "has left no throughput, or has no end"),
    ],
)
def test_a_job_that_cannot_be_played_is_named(jobs, changed, why):
    folder = jobs("a", **{"records_total": 100, "samples": SAMPLES, **changed})

    with pytest.raises(UsageError) as error:
        read(folder, None, 0)

    assert f"{folder}/a {why}" in str(error.value)


@pytest.mark.parametrize(
    ("workload", "more", "why"),
    [
        ("none.csv", {}, "There is no none.csv: give a file, a folder of jobs, or `philly`."),
        ("philly", {}, "--traces is missing"),
        ("FILE", {"jobs": 3, "traces": "x"}, "--jobs is of `philly`"),
        ("FOLDER", {"traces": "x"}, "which bring their speed: no --traces"),
        ("FOLDER", {}, "has no folder of a job"),
    ],
)
def test_a_source_that_makes_no_sense_is_one_sentence(tmp_path, workload, more, why):
    (tmp_path / "FILE").write_text("")
    (tmp_path / "FOLDER").mkdir()
    where = str(tmp_path / workload) if workload.isupper() else workload

    with pytest.raises(UsageError) as error:
        read(where, more.get("traces"), 0, jobs=more.get("jobs"))

    assert why in str(error.value)


def test_a_report_of_another_version_is_said(jobs):
    folder = jobs("a", records_total=100, samples=SAMPLES)
    path = Path(folder) / "a" / "result.json"
    status = json.loads(path.read_text())
    status["report"]["version"] = 99
    path.write_text(json.dumps(status))

    with pytest.raises(UsageError, match=r"report.version is 99"):
        read(folder, None, 0)
