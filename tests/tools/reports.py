"""Reports of jobs, made up."""

import dataclasses

from hypothesis import strategies as st

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
)

COUNT = st.integers(0, 2**63 - 1)
NUMBER = st.floats(0, 1e300)
SHARE = st.floats(0, 1)
PHASES = st.builds(Phases, COUNT, *[NUMBER] * 4, SHARE)
STEP = st.builds(StepTimes, *[NUMBER] * 7)
REPORTS = st.builds(
    Report,
    version=st.just(VERSION),
    records_left=st.none() | COUNT,
    records_total=st.none() | COUNT,
    epochs=st.none() | COUNT,
    samples=st.lists(
        st.builds(Sample, *[COUNT] * 4, NUMBER, NUMBER, COUNT, st.none() | PHASES), max_size=3
    ).map(tuple),
    model=st.none() | st.builds(Model, STEP, NUMBER, NUMBER, COUNT, COUNT, st.none() | COUNT),
    resize=st.builds(Resize, st.none() | NUMBER, st.none() | NUMBER),
    workers=st.builds(Bounds, st.none() | st.integers(0, 5), st.none() | st.integers(5, 9)),
    nodes=st.builds(Bounds, st.none() | COUNT),
    priority=st.none() | st.text(),
    nearly_done=st.booleans(),
    suspended=st.booleans(),
    servers_model=st.none() | st.builds(ServersModel, *[NUMBER] * 8, *[SHARE] * 3),
)

_ONE = Report(
    version=VERSION,
    records_left=900,
    records_total=1000,
    epochs=1,
    samples=(Sample(1, 2, 1, 64, 100.0, 10.0, 3),),
    model=None,
    resize=Resize(),
    workers=Bounds(),
    nodes=Bounds(),
    priority=None,
    nearly_done=False,
    suspended=False,
)


def make_report(**values: object) -> Report:
    """Return the report of a job that has begun, with these values instead."""
    return dataclasses.replace(_ONE, **values)  # type: ignore[arg-type]
