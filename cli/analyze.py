"""`edl data analyze`: statistics of each column, which the layers of `edl.nn.preprocess` read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from ..common.errors import UsageError


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--out", default="analysis.json", type=click.Path(path_type=Path), help="Where the JSON goes."
)
@click.option("--data_reader_params", default="", metavar="K=V,...", help="The reader's arguments.")
@click.option(
    "--vocabulary", default=10_000, type=click.IntRange(1), help="Most frequent values to keep."
)
@click.option(
    "--processes", type=click.IntRange(1), help="How many read; default: by the data and the cores."
)
def analyze(
    files: tuple[str, ...],
    out: Path,
    data_reader_params: str,
    vocabulary: int,
    processes: int | None,
) -> None:
    """Write min, max, mean, quantiles, vocabularies of each column as JSON.

    Each record is read once, in memory that does not grow with the data.
    """
    from ..common.values import convert
    from ..data.analysis import Sizes
    from ..data.analyze import analyze as run
    from ..data.open import open_reader

    if out.is_dir() or not out.parent.is_dir():  # before an hour of reading
        raise UsageError(f"--out {out} must be a file in a folder that is there.")
    params = convert(data_reader_params, dict[str, Any], "--data_reader_params")
    reader = open_reader(",".join(files), **params)
    summary = run(reader, Sizes(vocabulary=vocabulary), processes).to_dict()
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    partial.write_text(json.dumps(summary, indent=1, allow_nan=False) + "\n")
    partial.replace(out)
    for name, column in summary["columns"].items():
        click.echo(f"{name:<24} {_line(column)}")
    for each in summary["broken"][:5]:
        click.echo(f"broken: {each}", err=True)
    broken = f"; left out as broken: {len(summary['broken'])}" * bool(summary["broken"])
    click.echo(f"wrote {out}: {summary['records']} records, each read once{broken}")


def _line(column: dict[str, Any]) -> str:
    about = "" if not column["distinct_error"] else "about "
    line = f"{column['kind']:<6} {about}{column['distinct']} distinct, {column['missing']} missing"
    if column["kind"] == "number" and column["mean"] is not None:
        spread = f"{column['mean']:.6g} ± {column['deviation'] or 0:.6g}"
        return f"{line}, {column['min']:.6g} to {column['max']:.6g}, {spread}"
    if column["vocabulary"]:
        return f"{line}, most often {column['vocabulary'][0][0]!r:.40}"
    return line
