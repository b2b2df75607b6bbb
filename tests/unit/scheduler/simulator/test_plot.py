"""Results are drawn as SVG."""

from xml.etree import ElementTree

from edl.scheduler.simulator import plot
from edl.scheduler.simulator.result import Outcome, Result

SVG = "{http://www.w3.org/2000/svg}"
RESULT = Result(
    (Outcome("a", 0.0, 100.0, 1, 50.0), Outcome("b", 0.0, 10.0, 0, 20.0)),
    gpus=((0.0, 2), (3600.0, 4), (7200.0, 0)),
    plans=2,
    policy_cpu_s=0.5,
)


def drawn(svg):
    """Return the line's points, and the words."""
    root = ElementTree.fromstring(svg)
    lines = [path.get("d") for path in root.iter(f"{SVG}path") if path.get("fill") == "none"]
    points = [tuple(map(float, at.split())) for at in lines[0].removeprefix("M").split("L")]
    return points, [text.text for text in root.iter(f"{SVG}text")]


def test_jobs_are_drawn_by_their_times_on_a_logarithmic_axis():
    (one, two), words = drawn(plot.jct_by_job({"finish & co": RESULT}))

    assert one == (64 + 560 / 2, 256)  # 10 s at the bottom, 100 s at the top
    assert two == (64 + 560, 40)
    assert {"finish & co", "10", "100"} <= set(words)


def test_gpus_hold_until_the_next_time():
    points, words = drawn(plot.gpus_over_time({"finish": RESULT}))

    assert points == [(64, 148), (344, 148), (344, 40), (624, 40), (624, 256)]
    assert {"GPUs", "0", "1", "2", "4"} <= set(words)


def test_figures_are_those_of_the_jobs():
    assert (RESULT.mean, RESULT.percentile(50), RESULT.makespan) == (55, 55, 100)
    assert (RESULT.restarts, RESULT.gpu_s) == (0.5, 70)
