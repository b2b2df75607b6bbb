"""Draw docs/at-size.svg from RESULTS.md: costs by tasks, workers, connections and columns.

    python -m benchmarks.at_size     from the repository root

The tables are those of "The master", "A server in a crowd" and "Readers", as they stand there.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import page
from benchmarks.page import Panel

RESULTS = Path(__file__).with_name("RESULTS.md")
Line = list[tuple[float, float]]


def rows(section: str) -> list[list[str]]:
    """Return the cells of all tables of a section of RESULTS.md."""
    text = RESULTS.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def number(cell: str) -> float:
    """Return the first number of a cell: a median stands before its spread."""
    return float(re.sub(r"[^0-9.].*", "", cell.replace(",", "")))


def master() -> list[Panel]:
    now = [row for row in rows("The master") if row[0] == "now" and number(row[1]) > 1_000]
    tasks: dict[str, Line] = {}
    workers: dict[str, Line] = {}
    for row in now:
        size, many, cost = number(row[1]), number(row[2]), number(row[6])
        tasks.setdefault(f"{many:,.0f} workers", []).append((size, cost))
        workers.setdefault(f"{page.short(size)} tasks", []).append((many, cost))
    title = "master: CPU us a task"
    return [Panel(title, "tasks of an epoch", tasks), Panel(title, "workers", workers)]


def connections() -> Panel:
    carrier, counts = "", list[float]()
    drawn: dict[str, Line] = {}
    for name, *cells in rows("A server in a crowd"):
        if name.startswith("connections"):
            carrier, counts = name.partition(", ")[2], [number(cell) for cell in cells]
        for end in ("p50", "p99"):
            if name == f"all busy: {end} of a pull, us" and carrier in ("auto", "tls"):
                drawn[f"{carrier}, {end}"] = list(zip(counts, map(number, cells), strict=True))
    return Panel("a server: us of a pull, all busy", "connections", drawn)


def columns() -> Panel:
    drawn: dict[str, Line] = {}
    for name, *cells in rows("Readers"):
        if (found := re.match(r"(CSV|Parquet), (\d+)", name)) is not None:
            for who, cell in (("pyarrow", cells[0]), ("edl", cells[4])):
                drawn.setdefault(f"{found[1]}, {who}", []).append((float(found[2]), number(cell)))
    return Panel("reading: CPU us a record", "columns, tasks of 512", drawn)


def main() -> None:
    panels = [*master(), connections(), columns()]
    (page.DOCS / "at-size.svg").write_text(page.picture(panels, columns=2))


if __name__ == "__main__":
    main()
