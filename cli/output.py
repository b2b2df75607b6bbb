"""Print what a command found: as a table for people, as JSON or YAML for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click

from ..common import finite
from ..common.plain import inert_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..jobs.job import Report

_ROW, _PANEL, _WIDE = 1000, 120, 160  # columns: of a table and of a panel in a pipe; -o wide

Function = Callable[..., Any]


def say(text: str, err: bool = False) -> None:
    """Print a text in which there may be words of others: names, errors, events, logs."""
    click.echo(inert_lines(text), err=err)


def log_line(text: str) -> None:
    """Print a line of a log: to a terminal as `say` does, to a file or a pipe as it is."""
    click.echo(inert_lines(text) if sys.stdout.isatty() else text)


def outputs(*more: str) -> Callable[[Function], Function]:
    """Add the option -o with the choices that all have, and `more`."""
    choices = ["table", "wide", "json", "yaml", *more]
    return click.option(
        "-o", "--output", type=click.Choice(choices), default="table", help="How it is printed."
    )


def is_drawn(output: str) -> bool:
    return output in ("table", "wide")


def print_report(report: Report, output: str) -> None:
    """Print a report in the form that -o names."""
    if not is_drawn(output):
        print_data(report.rows, output)
    elif report.empty and not report.rows:
        click.echo(report.empty)
    else:
        shown = report.drawn(output == "wide")
        for each in shown if isinstance(shown, list) else [shown]:
            _draw(each, output == "wide")


def print_data(found: object, output: str) -> None:
    """Print values as JSON (common/finite.py) or YAML, which has NaN and infinities of its own."""
    if output == "json":
        click.echo(finite.dumps(found, indent=2))
        return
    import yaml

    click.echo(yaml.safe_dump(found, sort_keys=False), nl=False)


def _draw(shown: object, wide: bool) -> None:
    from rich.console import Console
    from rich.segment import Segment, Segments
    from rich.table import Table

    # Piped, a row is as long as it is: nothing is cut for a terminal that is not there.
    terminal = Console().width if sys.stdout.isatty() else None
    width = terminal or (_ROW if isinstance(shown, Table) else _PANEL)
    if wide and isinstance(shown, Table):
        width = max(width, _WIDE)
    console = Console(width=width, markup=False, emoji=False)
    # Whatever is drawn, and whoever named it: no word of others is markup, or does anything.
    parts = [
        part if part.control else Segment(inert_lines(part.text), part.style)
        for part in console.render(cast("RenderableType", shown))
    ]
    console.print(Segments(parts), end="")
