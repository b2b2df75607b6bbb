"""A report is read as it was written; anything else is one sentence with the field in it."""

import copy
import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.reports import REPORTS

from edl.common.errors import EdlError
from edl.common.report import (
    VERSION,
    Bounds,
    Model,
    Phases,
    Report,
    Resize,
    Sample,
    ServersModel,
    StepTimes,
    compact,
    read,
    write,
)

pytestmark = pytest.mark.fast

WHOLE = write(
    Report(
        version=VERSION,
        records_left=70,
        records_total=100,
        epochs=2,
        samples=(Sample(1, 2, 1, 16, 12.5, 4.0, 3, Phases(9, 0.1, 0.2, 0.3, 0.4, 0.5)),),
        model=Model(StepTimes(*[0.1] * 6, 1.5), 1.0, 2.0, 16, 64, None),
        resize=Resize(0.5),
        workers=Bounds(1, 4),
        nodes=Bounds(),
        priority=None,
        nearly_done=False,
        suspended=False,
        servers_model=ServersModel(*[0.1] * 11),
    )
)


@given(REPORTS)
def test_a_report_is_read_as_it_was_written_also_without_its_nulls(report):
    written = json.loads(json.dumps(write(report)))

    assert (report, report) == (read(written), read(compact(written)))
    assert "null" not in json.dumps(compact(written)).replace('"null"', "")


def test_a_report_of_version_1_is_read_too():
    before = {name: each for name, each in WHOLE.items() if name != "servers_model"}
    (sample,) = before["samples"]
    sample = {name: each for name, each in sample.items() if name != "phases"}

    found = read({**before, "version": 1, "samples": [sample]})

    assert (found.version, found.servers_model) == (1, None)
    assert found.samples == (Sample(1, 2, 1, 16, 12.5, 4.0, 3),)


def changed(*path, to=None, without=False):
    """WHOLE with another value at this path, or with none."""
    values = copy.deepcopy(WHOLE)
    place = values
    for name in path[:-1]:
        place = place[name]
    if without:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return values


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (None, "report is None: it must be an object."),
        ([], "report is []: it must be an object."),
        ({}, "report.version is None: it must be 1 or 2, as this edl reads."),
        (changed("version", to=3), "report.version is 3: it must be 1 or 2, as this edl reads."),
        (changed("version", to=True), "report.version is True: it must be a whole number from 0"),
        (changed("samples", without=True), "report.samples is missing: it must be a list."),
        (changed("resize", without=True), "report.resize is missing: it must be an object."),
        (changed("suspended", without=True), "report.suspended is missing: it must be true or"),
        (changed("samples", to={}), "report.samples is {}: it must be a list."),
        (changed("samples", 0, to="fast"), "report.samples[0] is 'fast': it must be an object."),
        (
            changed("samples", 0, "records_per_s", to="fast"),
            "report.samples[0].records_per_s is 'fast': it must be a finite number from 0 on.",
        ),
        (
            changed("samples", 0, "seconds", to=float("nan")),
            "report.samples[0].seconds is nan: it must be a finite number from 0 on.",
        ),
        (
            changed("samples", 0, "workers", to=1.5),
            "report.samples[0].workers is 1.5: it must be a whole number from 0 on.",
        ),
        (changed("records_left", to=-1), "report.records_left is -1: it must be a whole number"),
        (changed("records_left", to=1 << 64), "it must be a whole number from 0 on."),
        (changed("model", "step", "gamma", to=True), "report.model.step.gamma is True: it must be"),
        (changed("priority", to=7), "report.priority is 7: it must be a text."),
        (changed("nearly_done", to=0), "report.nearly_done is 0: it must be true or false."),
        (
            changed("workers", "minimum", to=5),
            "report.workers.minimum is 5: it must be at most the maximum, 4.",
        ),
        (
            changed("resize", "nodes", to=1.0),
            "report.resize.nodes is no field of a report of version 2: there are workers, servers.",
        ),
        (
            changed("samples", 0, "phases", "share", to=1.5),
            "report.samples[0].phases.share is 1.5: it must be at most 1.",
        ),
        (
            changed("servers_model", "hot", to=3.0),
            "report.servers_model.hot is 3.0: it must be at most 1.",
        ),
    ],
)
def test_what_is_no_report_is_one_sentence_with_the_field_and_what_is_right(values, said):
    with pytest.raises(EdlError) as refused:
        read(values)

    assert said in str(refused.value)
    assert str(refused.value).endswith(".")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=3), some),
    max_leaves=8,
)


def paths(values: typing.Any, path: tuple[typing.Any, ...] = ()) -> list[tuple[typing.Any, ...]]:
    """The paths of all that stands in JSON values."""
    inside = values.items() if isinstance(values, dict) else enumerate(values)
    found = []
    for name, each in inside:
        found.append((*path, name))
        if isinstance(each, dict | list):
            found += paths(each, (*path, name))
    return found


def refusal(values: typing.Any) -> str:
    try:
        read(values)
    except EdlError as error:
        return str(error)
    return ""


@given(st.sampled_from(paths(WHOLE)), JSON)
def test_whatever_stands_at_a_place_is_read_or_refused_by_its_name(path, value):
    said = refusal(changed(*path, to=value))

    assert said == "" or said.startswith(f"report.{path[0]}")
