"""The small drawings of `edl top`: bars and curves of characters, and texts in ASCII. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from rich.text import Text

from ..series import Point

_ASCII = str.maketrans(
    {
        "█": "#",
        "▓": "%",
        "▒": "=",
        "░": "-",
        "·": ".",
        "▞": "/",
        "▚": "\\",
        "…": "~",
        "●": "*",
        "▲": "^",
        "▼": "v",
    }
    | dict(zip("▁▂▃▄▅▆▇", "__..--~", strict=True))
)
_STEPS = "▁▂▃▄▅▆▇█"
# Each use of time has a character of its own beside its colour.
USES = {
    "useful": ("█", "green", "useful"),
    "recomputed": ("▓", "red", "recomputed"),
    "waiting_data": ("▒", "yellow", "waits for data"),
    "waiting_servers": ("▞", "yellow", "waits for servers"),
    "waiting_teachers": ("▚", "magenta", "waits for teachers"),
    "starting": ("░", "cyan", "starting"),
    "idle": ("·", "dim", "idle"),
}


def plain_ascii(text: Text) -> Text:
    """Return a text for a terminal that has no more than ASCII."""
    made = text.copy()
    made.plain = text.plain.translate(_ASCII).encode("ascii", "replace").decode()
    return made


def meter(share: float, width: int, style: str = "green") -> Text:
    """Return a bar that is full by this share."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return Text.assemble(("█" * full, style), ("░" * (width - full), "dim"))


def parts(shares: Mapping[str, float], width: int) -> Text:
    """Return a bar of the uses of time; what was used at all has a character at least."""
    known = {name: value for name, value in shares.items() if name in USES and value > 0}
    total = sum(known.values())
    cells = {name: max(1, round(value / total * width)) for name, value in known.items()}
    made = Text()
    while cells and sum(cells.values()) > width:
        cells[max(cells, key=lambda name: cells[name])] -= 1
    for name in sorted(cells, key=list(USES).index):
        made.append(USES[name][0] * max(0, cells[name]), USES[name][1])
    return made


def curve(points: Sequence[Point], width: int) -> str:
    """Return a curve over time in one line; a space where there is no number."""
    known = [(t, value) for _, t, value in points if math.isfinite(value)]
    if not known or width <= 0:
        return ""
    first, last = known[0][0], known[-1][0]
    cells: list[list[float]] = [[] for _ in range(width)]
    for t, value in known:
        share = (t - first) / (last - first) if last > first else 0.0
        cells[min(width - 1, int(share * width))].append(value)
    means = [sum(each) / len(each) if each else None for each in cells]
    return _steps(_joined(means))


def _joined(means: Sequence[float | None]) -> Iterable[float | None]:
    """Yield the means; where there is no point, what was before goes on up to the last one."""
    before = None
    last = max(at for at, mean in enumerate(means) if mean is not None)
    for at, mean in enumerate(means):
        before = mean if mean is not None else before
        yield before if at <= last else None


def _steps(means: Iterable[float | None]) -> str:
    known = list(means)
    numbers = [mean for mean in known if mean is not None and math.isfinite(mean)]
    if not numbers:
        return ""
    least, greatest = min(numbers), max(numbers)
    height = greatest - least

    def step(mean: float | None) -> str:
        if mean is None or not math.isfinite(mean):
            return " "
        share = (mean - least) / height if height > 0 and math.isfinite(height) else 0.5
        return _STEPS[min(len(_STEPS) - 1, int(share * len(_STEPS)))]

    return "".join(map(step, known))
