"""Pictures of results as SVG: the jobs' times to completion, and the GPUs in use over time."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from .result import Result

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 40, 44
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_TICKS = 4

Points = Sequence[tuple[float, float]]


def jct_by_job(results: Mapping[str, Result]) -> str:
    """Draw the JCT of the jobs of each result, ascending, on an axis of their logarithms."""
    lines = {
        name: list(enumerate(sorted(max(job.jct, 1.0) for job in result.jobs), start=1))
        for name, result in results.items()
    }
    return _picture("time to completion by job", "jobs, by their times", "s", lines, is_log=True)


def gpus_over_time(results: Mapping[str, Result]) -> str:
    """Draw the GPUs in use of each result."""
    lines = {name: _steps(result.gpus) for name, result in results.items()}
    return _picture("GPUs in use over time", "h", "GPUs", lines, is_log=False)


def _steps(gpus: Points) -> Points:
    """Return the corners of a line that holds each value until the next time, in hours."""
    held = itertools.pairwise(gpus)
    corners = [point for (start, n), (end, _) in held for point in ((start, n), (end, n))]
    return [(time / 3600, n) for time, n in [*corners, gpus[-1]]]


def _picture(title: str, across: str, up: str, lines: Mapping[str, Points], is_log: bool) -> str:
    scale: Callable[[float], float] = math.log10 if is_log else float
    points = [point for line in lines.values() for point in line]
    right = max(x for x, _ in points)
    low = math.floor(scale(min(y for _, y in points))) if is_log else 0
    high = max(low + 1, math.ceil(scale(max(y for _, y in points))))
    wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return _LEFT + wide * x / right, _TOP + tall * (1 - (y - low) / (high - low))

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            'font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 16, title, "start"),
        _text(_LEFT - 6, _TOP - 8, up, "end"),
        _text(_WIDTH - _RIGHT, _HEIGHT - 8, across, "end"),
    ]
    ticks = range(low, high + 1) if is_log else [high * n / _TICKS for n in range(_TICKS + 1)]
    for tick in ticks:
        x, y = at(0, tick)
        parts.append(f'<path d="M{x:.1f} {y:.1f}h{wide}" stroke="#dddddd"/>')
        parts.append(_text(x - 6, y + 4, f"{10**tick if is_log else tick:g}", "end"))
    for tick in _round_numbers(right):
        x, y = at(tick, low)
        parts.append(_text(x, y + 16, f"{tick:g}", "middle"))
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = "L".join("{:.1f} {:.1f}".format(*at(x, scale(y))) for x, y in line)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(_text(_LEFT + 8 + 100 * number, _TOP - 8, name, "start", colour))
    return "\n".join([*parts, "</svg>", ""])


def _round_numbers(most: float) -> list[float]:
    """Return at most _TICKS + 1 round numbers from 0 to `most`, in equal steps."""
    least = most / _TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= least * (1 - 1e-9))
    return [step * n for n in range(math.floor(most / step + 1e-9) + 1)]


def _text(x: float, y: float, words: str, anchor: str, colour: str = "#333333") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">'
        f"{html.escape(words)}</text>"
    )
