"""Reports of jobs, made up."""

from hypothesis import strategies as st

from edl.common.report import VERSION, Bounds, Model, Report, Resize, Sample, StepTimes

COUNT = st.integers(0, 2**63 - 1)
NUMBER = st.floats(0, 1e300)
STEP = st.builds(StepTimes, *[NUMBER] * 7)
REPORTS = st.builds(
    Report,
    version=st.just(VERSION),
    records_left=st.none() | COUNT,
    records_total=st.none() | COUNT,
    epochs=st.none() | COUNT,
    samples=st.lists(
        st.builds(Sample, COUNT, COUNT, COUNT, COUNT, NUMBER, NUMBER, COUNT), max_size=3
    ).map(tuple),
    model=st.none() | st.builds(Model, STEP, NUMBER, NUMBER, COUNT, COUNT, st.none() | COUNT),
    resize=st.builds(Resize, st.none() | NUMBER, st.none() | NUMBER),
    workers=st.builds(Bounds, st.none() | st.integers(0, 5), st.none() | st.integers(5, 9)),
    nodes=st.builds(Bounds, st.none() | COUNT),
    priority=st.none() | st.text(),
    nearly_done=st.booleans(),
    suspended=st.booleans(),
)
