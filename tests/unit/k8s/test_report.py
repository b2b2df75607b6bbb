"""The report of a master in its EdlJob's status: what is written of it, when, and what is not."""

import dataclasses

import pytest
from hypothesis import given
from tools.reports import REPORTS

from edl.common import report
from edl.common.report import (
    Bounds,
    Model,
    Phases,
    Report,
    Resize,
    Sample,
    ServersModel,
    StepTimes,
)
from edl.k8s.job_status import difference, status

from .edljobs import edljob, told
from .test_job import LATER, NOW, SCHEMA, running, situation

pytestmark = pytest.mark.fast


def reported(**more):
    """A report as a master writes it."""
    sample = Sample(1, 2, 1, 16, 12.5, 4.0, 3)
    made = Report(
        1, 70, 100, 2, (sample,), None, Resize(0.5), Bounds(), Bounds(), None, False, False
    )
    return report.write(dataclasses.replace(made, **more))


def shown(job, told_report, now=NOW):
    """The status of a job whose master says this."""
    return status(situation(job, running(job), told(report=told_report)), now)


def test_a_report_says_what_the_spec_says_and_nothing_that_is_null():
    worker = {"replicas": 4, "minReplicas": 2, "maxReplicas": 6, "priorityClassName": "gold"}
    job = edljob(worker=worker, suspend=True)

    found = shown(job, reported(records_left=None))

    assert found["reportTime"] == NOW
    assert found["report"] == {
        "version": 1,
        "records_total": 100,
        "epochs": 2,
        "samples": [
            {
                "servers": 1,
                "workers": 2,
                "nodes": 1,
                "minibatch": 16,
                "records_per_s": 12.5,
                "seconds": 4.0,
                "looks": 3,
            }
        ],
        "resize": {"workers": 0.5},
        "workers": {"minimum": 2, "maximum": 6},
        "nodes": {},
        "priority": "gold",
        "nearly_done": False,
        "suspended": True,
    }
    assert report.read(found["report"]).suspended


def test_figures_of_a_report_are_written_anew_after_a_while_and_words_at_once():
    job = edljob()
    job["status"] = shown(job, reported())
    soon, later = NOW.replace("00Z", "09Z"), NOW.replace("00Z", "10Z")

    kept = shown(job, reported(records_left=60), soon)
    turned = shown(job, reported(records_left=60, nearly_done=True), soon)
    again = shown(job, reported(records_left=50), later)

    assert difference(job["status"], kept) == {}
    assert difference(job["status"], turned) == {
        "report": {"records_left": 60, "nearly_done": True},
        "reportTime": soon,
    }
    assert (again["report"]["records_left"], again["reportTime"]) == (50, later)
    assert difference(job["status"], shown(job, reported(), later)) == {}
    said = told("done", exit_code=0, report=reported(records_left=0))
    assert status(situation(job, [], said), soon)["report"]["records_left"] == 0


def test_a_figure_that_nobody_knows_any_more_goes_away():
    job = edljob()
    job["status"] = shown(job, reported())

    changes = difference(job["status"], shown(job, reported(resize=Resize()), LATER))

    assert changes == {"report": {"resize": {"workers": None}}, "reportTime": LATER}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (reported(version=3), "report.version is 3: it must be 1 or 2, as this edl reads."),
        ({**reported(), "samples": 7}, "report.samples is 7: it must be a list."),
        ("?", "report is '?': it must be an object."),
    ],
)
def test_a_bad_report_leaves_the_one_before_and_says_why(bad, said):
    job = edljob()
    job["status"] = shown(job, reported())

    found = shown(job, bad, LATER)

    assert difference(job["status"], found) == {"reportProblem": said}
    job["status"] = found
    assert difference(found, shown(job, reported(), LATER)) == {"reportProblem": None}
    assert "report" not in shown(edljob(), bad)


def test_a_report_of_a_master_that_is_not_heard_is_kept():
    job = edljob()
    job["status"] = shown(job, reported())

    assert shown(job, None, LATER)["report"] == job["status"]["report"]


def undescribed(values, schema, path):
    """What of these values a schema does not allow."""
    if (kind := schema["type"]) == "object":
        assert isinstance(values, dict), path
        known = schema.get("properties", {})
        found = [f"{path}.{name}" for name in values.keys() - known.keys()]
        found += [f"{path}.{name}" for name in schema.get("required", []) if name not in values]
        for name in values.keys() & known.keys():
            found += undescribed(values[name], known[name], f"{path}.{name}")
        return found
    if kind == "array":
        return [bad for each in values for bad in undescribed(each, schema["items"], f"{path}[]")]
    of = {"integer": int, "number": int | float, "string": str, "boolean": bool}[kind]
    is_right = isinstance(values, of) and (kind == "boolean" or type(values) is not bool)
    return [] if is_right else [path]


@given(REPORTS)
def test_every_report_fits_the_resource(made):
    job = edljob()
    found = status(situation(job, [], told(report=report.write(made))), NOW)

    assert undescribed(found["report"], SCHEMA["report"], "report") == []


def test_the_resource_has_all_fields_of_a_report_and_no_others():
    def fields(schema, kind):
        described = schema.get("properties", {})
        assert list(described) == [each.name for each in dataclasses.fields(kind)]
        return described

    top = fields(SCHEMA["report"], Report)
    fields(fields(top["samples"]["items"], Sample)["phases"], Phases)
    fields(top["servers_model"], ServersModel)
    fields(fields(top["model"], Model)["step"], StepTimes)
    fields(top["resize"], Resize)
    fields(top["workers"], Bounds)
    fields(top["nodes"], Bounds)
