"""The page of performance figures: its blocks, its plot, the samples of a profile."""

import xml.etree.ElementTree as ET

import pytest

from benchmarks.page import Panel, picture, refresh, short

pytestmark = pytest.mark.fast

SVG = "{http://www.w3.org/2000/svg}"


def test_a_block_is_written_anew_and_all_else_is_left(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a -->\nold\n<!-- /a -->\nafter\n")

    refresh("a", "\nnew\n", page)

    assert page.read_text() == "before\n<!-- a -->\nnew\n<!-- /a -->\nafter\n"


def test_a_block_that_is_not_there_is_named(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- a -->\nnever ended\n")

    with pytest.raises(ValueError, match="has no block 'a'"):
        refresh("a", "new", page)


def test_what_changes_in_time_is_drawn_as_stairs():
    panel = Panel("title", "seconds", {"one": [(0, 2.0), (30, 4.0), (40, 4.0)]}, steps=True)

    drawn = ET.fromstring(picture([panel]))

    (line,) = drawn.iter(f"{SVG}polyline")
    points = [tuple(map(float, p.split(","))) for p in line.get("points").split()]
    (left, low), before, after, _, (right, high) = points
    assert before == pytest.approx((left + 0.75 * (right - left), low))
    assert after == (before[0], high)
    assert {"0", "10", "20", "30", "40"} <= {text.text for text in drawn.iter(f"{SVG}text")}


def test_lines_are_drawn_by_the_logarithm_of_x_and_from_0():
    panel = Panel("title", "rows", {"one": [(1, 0.0), (10, 50.0), (100, 100.0)]})

    drawn = ET.fromstring(picture([panel]))

    (line,) = drawn.iter(f"{SVG}polyline")
    points = [tuple(map(float, p.split(","))) for p in line.get("points").split()]
    ends = zip(points[0], points[2], strict=True)
    assert points[1] == pytest.approx([(a + b) / 2 for a, b in ends])
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"title", "rows", "one", "0", "100"} <= set(texts)


def test_panels_stand_in_rows_and_may_begin_above_0():
    lines = {"one": [(0, 0.8), (10, 0.9)]}
    panels = [Panel(title, "seconds", lines, steps=True, low=0.8) for title in "ab"]

    drawn = ET.fromstring(picture(panels, columns=1))

    one, other = drawn.iter(f"{SVG}g")
    _, _, _, height = drawn.get("viewBox").split()
    assert ["translate(0 0)", f"translate(0 {int(height) // 2})"] == [
        group.get("transform") for group in (one, other)
    ]
    assert {"0.8", "0.9"} <= {text.text for text in one.iter(f"{SVG}text")}
    assert "0.7" not in {text.text for text in one.iter(f"{SVG}text")}
    points = one.find(f"{SVG}polyline").get("points").split()
    lines = [path.get("d") for path in one.iter(f"{SVG}path")]
    assert lines[0].startswith(f"M48,{points[0].split(',')[1]}H")  # 0.8 lies on the lowest


def test_numbers_are_short():
    assert ["1", "2k", "316k", "3.16M", "100M"] == [
        short(n) for n in (1, 2_000, 316_228, 3_162_278, 100_000_000)
    ]
