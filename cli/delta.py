"""`edl delta`: what a job leaves for serving (--delta_dir), for people and for other servers."""

from __future__ import annotations

import time
from typing import Any

import click

from ..common.errors import CheckpointError, UsageError
from .output import outputs, print_report, say

_PERIOD_S = 1.0


@click.group()
def delta() -> None:
    """Deltas of a job that trains: show them, or keep a Redis server at its newest cut.

    FOLDER is what the job has as --delta_dir: a folder, or a URL.
    """


@delta.command()
@click.argument("folder")
@outputs()
def show(folder: str, output: str) -> None:
    """Show the bases and deltas of a folder: cut, records trained on, rows, bytes."""
    from ..jobs.job import Report

    listed = _listed(folder)
    print_report(Report(listed, lambda _: [_table(listed)]), output)


def _listed(folder: str) -> list[dict[str, Any]]:
    from ..common import deltas
    from ..common.places import Place

    root, listed = Place(folder), list[dict[str, Any]]()
    try:
        names = deltas.listed(root)
    except OSError as error:
        raise UsageError(f"{folder} cannot be listed: {error}.") from error
    if not names:
        raise UsageError(
            f"{folder} has no base and no delta: name what a job has as --delta_dir, a moment "
            "after its first step."
        )
    for name in names:
        try:
            manifest = deltas.said(root / str(name))
            about = deltas.about(manifest)
        except CheckpointError as error:
            listed.append({"name": str(name), "error": str(error)})
            continue
        listed.append(
            {
                "name": str(name),
                "job": about.job,
                "since": about.since,
                "cut": about.cut,
                "version": manifest.version,
                "created": manifest.created,
                "records": about.records,
                "rows": dict(about.rows),
                "nbytes": sum(record.nbytes for record in manifest.files),
            }
        )
    return listed


def _table(listed: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    from ..serve import told

    drawn = Table(box=None, pad_edge=False)
    for column in ("name", "version", "written", "records", "rows", "bytes"):
        drawn.add_column(column, no_wrap=column != "rows")
    for each in listed:
        if "error" in each:
            drawn.add_row(each["name"], "", "", "", f"not whole: {each['error']}", "")
            continue
        rows = ", ".join(f"{table} {count:,}" for table, count in each["rows"].items())
        version, records = str(each["version"]), f"{each['records']:,}"
        size = told.nbytes(each["nbytes"])
        drawn.add_row(each["name"], version, each["created"], records, rows, size)
    return drawn


@delta.command()
@click.argument("folder")
@click.argument("url", metavar="REDIS_URL")
@click.option("--prefix", default="edl:", show_default=True, help="Begins the names of all keys.")
@click.option("--once", is_flag=True, help="End where nothing leads on, instead of waiting.")
def redis(folder: str, url: str, prefix: str, once: bool) -> int:
    """Keep a Redis server at the newest cut of a job, each cut whole.

    REDIS_URL is redis://HOST:PORT/0, rediss://... or unix:///PATH. It ends with Ctrl-C, and goes on
    where it was when it is started again. docs/fresh.md says what the keys are.
    """
    from ..serve.redis_writer import Mirror, connected

    def tell(text: str) -> None:
        say(text, err=True)

    with connected(url) as client:
        mirror = Mirror(folder, client, prefix, tell)
        count = 0
        while True:
            about = mirror.step(time.monotonic())
            if about is not None:
                count += 1
                say(f"cut {about.number}: {about.cut} of {about.job}")
            elif once:
                return 0 if count or mirror.has_cut else 2
            else:
                time.sleep(_PERIOD_S)
