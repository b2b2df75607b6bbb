"""`edl data analyze`: statistics of each column, which the layers of `edl.nn.preprocess` read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..common import cores, paths
from ..common.errors import UsageError
from .output import say
from .paths import LocalPath

if TYPE_CHECKING:
    from ..common.settings import JobSettings

_STOPPING = "the workers stop, and nothing is written"


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--out", default="analysis.json", type=LocalPath(path_type=Path), help="Where the JSON goes."
)
@click.option("--data_reader_params", default="", metavar="K=V,...", help="The reader's arguments.")
@click.option("--schema", default="", metavar="FILE", help="Types of columns (edl data schema).")
@click.option(
    "--vocabulary", default=10_000, type=click.IntRange(1), help="Most frequent values to keep."
)
@click.option(
    "--num_workers",
    type=click.IntRange(1),
    help="Workers of a job that reads the data; default: by the data and the cores.",
)
def analyze(
    files: tuple[str, ...],
    out: Path,
    data_reader_params: str,
    schema: str,
    vocabulary: int,
    num_workers: int | None,
) -> int:
    """Write min, max, mean, quantiles, vocabularies of each column as JSON.

    Each record is read once, in memory that does not grow with the data: by this process, or where
    there are many by the workers of a job, which may come and go.
    """
    from ..common.resolve import typed
    from ..common.settings import ANALYZE
    from ..data.analysis import Sizes
    from ..data.analyze import PAYS, write
    from ..data.analyze import analyze as run
    from ..data.open import open_reader
    from ..data.reader import schema_of
    from ..data.schema_given import schema_given

    if out.is_dir() or not out.parent.is_dir():  # before an hour of reading
        raise UsageError(f"--out {out} must be a file in a folder that is there.")
    paths.check_file(str(out), "--out")
    types = schema_given(schema)
    values = {"training_data": ",".join(files), "data_reader_params": data_reader_params}
    settings = typed(ANALYZE, {**values, "schema": types.to_json() if types else {}})
    reader = open_reader(settings.training_data, schema=types, **settings.data_reader_params)
    records = sum(source.records for source in reader.sources())  # what is wrong is told at once
    if num_workers is None:
        fitting = min(cores.usable(), records // PAYS)
        num_workers = fitting if fitting > 1 else 0
    if not num_workers:
        for note in schema_of(reader).notes():
            say(note, err=True)
        write(run(reader, Sizes(vocabulary=vocabulary)), out)
    else:
        settings = dataclasses.replace(
            settings,
            num_workers=num_workers,
            num_ps=0,
            vocabulary=vocabulary,
            output=str(out.absolute()),
            tensorboard=False,
        )
        if code := _in_job(settings):
            return code
    _tell(json.loads(out.read_bytes()), out)
    return 0


def _in_job(settings: JobSettings) -> int:
    """Run the job to its end; return its exit code."""
    from ..jobs.follow import follow
    from ..jobs.local_source import LocalSource
    from ..jobs.start import start
    from .screen import open_screen

    job, child = start(settings)
    screen = open_screen(settings.log_format, dataclasses.asdict(settings))
    return follow(LocalSource(job, child, _STOPPING), screen)


def _tell(summary: dict[str, Any], out: Path) -> None:
    for name, column in summary["columns"].items():
        say(f"{name:<24} {_line(column)}")
    for each in summary["broken"][:5]:
        say(f"broken: {each}", err=True)
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
