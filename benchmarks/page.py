"""Write blocks of docs/performance.md anew, and draw lines as plain SVG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "performance.md"

_WIDTH, _HEIGHT = 320, 260  # of a panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 20, 34, 78
_APART = 36  # two labels, at least
_STYLES = (("#0072b2", "none"), ("#d55e00", "none"), ("#0072b2", "5 3"), ("#d55e00", "5 3"))


def refresh(block: str, text: str, page: Path = PAGE) -> None:
    """Put `text` between the page's marks `<!-- block -->` and `<!-- /block -->`."""
    before, found, rest = page.read_text().partition(f"<!-- {block} -->\n")
    _, ended, after = rest.partition(f"<!-- /{block} -->")
    if not (found and ended):
        raise ValueError(f"{page} has no block {block!r}")
    page.write_text(f"{before}{found}{text.strip()}\n{ended}{after}")


@dataclass(frozen=True)
class Panel:
    """A panel of lines of (x, y) by name, at most four.

    x is drawn by its logarithm, y from `low` on. `steps`: x is a time, from 0 on, drawn as it is; y
    holds until the next point.
    """

    title: str
    across: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    steps: bool = False
    low: float = 0.0


def picture(panels: Sequence[Panel], columns: int | None = None) -> str:
    """Draw the panels side by side, so many in a row; None: all."""
    columns = columns or len(panels)
    width, height = _WIDTH * columns, _HEIGHT * math.ceil(len(panels) / columns)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        x, y = number % columns * _WIDTH, number // columns * _HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *_drawn(panel), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _drawn(panel: Panel) -> list[str]:
    points = [point for line in panel.lines.values() for point in line]
    xs = sorted({x for x, _ in points})
    scale = float if panel.steps else math.log
    first, last = scale(0.0 if panel.steps else xs[0]), scale(xs[-1])
    most = (max(y for _, y in points) - panel.low) or 1.0
    step = _round_step(most)
    top = step * math.ceil(most / step)
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(x: float) -> float:
        return _LEFT + inner_width * (scale(x) - first) / ((last - first) or 1.0)

    def down(y: float) -> float:
        return _TOP + inner_height * (1 - (y - panel.low) / top)

    parts = [f'<text x="{_LEFT}" y="18" font-weight="bold">{panel.title}</text>']
    for mark in range(round(top / step) + 1):
        value = panel.low + mark * step
        y = down(value)
        parts.append(f'<path d="M{_LEFT},{y:.1f}H{_WIDTH - _RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    right = math.inf
    for x in _times(xs[-1]) if panel.steps else _marks(xs):
        if right - across(x) < _APART:
            continue  # no room for both
        right = across(x)
        parts.append(
            f'<text x="{across(x):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">'
            f"{short(x)}</text>"
        )
    middle = _LEFT + inner_width / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - _BOTTOM + 32}" text-anchor="middle">'
        f"{panel.across}</text>"
    )
    for row, ((name, line), (colour, dash)) in enumerate(
        zip(panel.lines.items(), _STYLES, strict=False)
    ):
        path = " ".join(
            f"{across(x):.1f},{down(y):.1f}" for x, y in (_stairs(line) if panel.steps else line)
        )
        stroke = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{path}" fill="none" {stroke}/>')
        parts += [
            f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="2.5" fill="{colour}"/>'
            for x, y in ([] if panel.steps else line)
        ]
        x, y = 14 + row % 2 * (_WIDTH // 2 - 8), _HEIGHT - _BOTTOM + 52 + row // 2 * 16
        parts.append(
            f'<path d="M{x},{y - 4}h20" {stroke}/><text x="{x + 25}" y="{y}">{name}</text>'
        )
    return parts


def _round_step(top: float) -> float:
    """Return the 1, 2 or 5 times a power of ten that cuts `top` into at most five parts."""
    power = 10 ** math.floor(math.log10(top / 5))
    return next(s * power for s in (1, 2, 5, 10) if s * power * 5 >= top)


def _marks(xs: Sequence[float]) -> list[float]:
    """Return the measured places, thinned to what can be read: the last one always."""
    return list(xs[::-1][:: 1 if len(xs) <= 7 else 2])


def _stairs(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    corners = (((x, y), (later, y)) for (x, y), (later, _) in itertools.pairwise(line))
    return [*itertools.chain.from_iterable(corners), line[-1]]


def _times(last: float) -> list[float]:
    step = _round_step(last)
    return [step * number for number in range(int(last / step), -1, -1)]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Make a Markdown table."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def short(value: float) -> str:
    """Write a number shortly: 100k, 3.2M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:g}"
