"""`edl checkpoint`: what a checkpoint holds, for people and for other programs.

Whatever is wrong with one is one sentence and the exit code 2: it is what the user named.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..common.errors import CheckpointError, UsageError
from ..common.values import seconds
from .output import Function, is_drawn, outputs, print_report, say
from .paths import LocalPath
from .place import complete_jobs, place, where

if TYPE_CHECKING:
    from ..serve.checkpoint import Checkpoint
    from ..serve.make import Given
    from ..serve.rows import Rows

_SHOWN = 20  # rows of a table on a screen


def _named(name: str) -> Callable[[Function], Function]:
    return click.argument(name, metavar=name.upper(), shell_complete=complete_jobs)


@contextlib.contextmanager
def _opened(*names: str, checksums: bool = True) -> Iterator[list[Checkpoint]]:
    from ..serve.checkpoint import open_checkpoint

    try:
        yield [open_checkpoint(name, checksums=checksums) for name in names]
    except CheckpointError as error:
        raise UsageError(str(error)) from error


@click.group()
def checkpoint() -> None:
    """Checkpoints: have one written now, show one, compare two, convert one to files and back.

    CHECKPOINT is a folder version-..., a folder of such (the newest that is whole is taken), or a
    job's name or folder.
    """


@checkpoint.command()
@click.argument("job", required=False, shell_complete=complete_jobs)
@click.option(
    "--timeout", default="10m", show_default=True, metavar="TIME", help="Wait at most so long."
)
@where
def write(job: str | None, timeout: str, runtime: str, namespace: str) -> None:
    """Have a job write a checkpoint of now, wait for it, and print where it is.

    Training goes on meanwhile. Exit code 1 where there can be none, or not in time.
    """
    try:
        timeout_s = seconds(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}.") from error
    with place(runtime, namespace) as jobs:
        click.echo(jobs.find(job).checkpoint(timeout_s))


@checkpoint.command()
@_named("checkpoint")
@click.option("--verify", is_flag=True, help="Compare each file with its sha256 too.")
@outputs()
def show(checkpoint: str, verify: bool, output: str) -> None:
    """Show what is in a checkpoint: version, job, definition, tensors, tables, optimizer."""
    from ..jobs.job import Report
    from ..serve import told

    with _opened(checkpoint, checksums=verify) as (found,):
        about = found.about
    print_report(Report(about, lambda wide: told.shown(about, wide)), output)


@checkpoint.command()
@_named("checkpoint")
@click.argument("table")
@click.option("--ids", metavar="ID,...", help="Only the rows of these ids.")
@click.option(
    "--keys", metavar="KEY,...", help="Only the rows of these raw values, as in the data."
)
@click.option(
    "--keys_file",
    type=LocalPath(path_type=Path),
    metavar="FILE",
    help="Raw values, one a line: those with commas, too.",
)
@click.option(
    "--key_column",
    default="",
    metavar="NAME",
    help="Column that keys are of; by default what the definition's raw_keys() says, else the "
    "table's name.",
)
@click.option(
    "--key_field",
    default="",
    metavar="NAME",
    help="Field of hash64 that makes their ids; by default the column's name.",
)
@click.option(
    "--out",
    type=LocalPath(path_type=Path),
    metavar="FILE",
    help="Write them, with the optimizer's state: FILE.parquet, FILE.safetensors or FILE.npz.",
)
@outputs()
def rows(
    checkpoint: str,
    table: str,
    ids: str | None,
    out: Path | None,
    output: str,
    **by_key: Any,
) -> None:
    """Show the rows of a table, or write them to a file."""
    from ..jobs.job import Report
    from ..serve import told
    from ..serve.convert import write_rows
    from ..serve.rows import rows as read

    wanted = _ids(ids) if ids is not None else None
    keys = _keys(by_key["keys"], by_key["keys_file"])
    column, field = by_key["key_column"], by_key["key_field"]
    with _opened(checkpoint) as (found,):
        there = read(found, table, wanted, keys=keys, column=column, field=field)
    lacking = _lacking(there, wanted, keys)
    if out is not None:
        write_rows(there, out)
        say(f"{len(there)} rows of {table!r} are in {out}")
    else:
        most = len(there) if wanted is not None or keys is not None else _SHOWN
        listed = told.rows(there, most)
        print_report(Report(listed, lambda wide: told.rows_table(listed, wide)), output)
        if is_drawn(output) and len(there) > most:
            click.echo(
                f"{len(there)} rows in all: --out FILE writes them, --ids and --keys choose some."
            )
    if lacking and (out is not None or is_drawn(output)):
        say(
            f"Not in the table: {', '.join(lacking)}. A model reads the first values "
            "that their rows would be made with.",
            err=True,
        )


def _lacking(there: Rows, ids: list[int] | None, keys: list[str] | None) -> list[str]:
    """Return the ids or keys that were asked for and have no row."""
    if keys is not None and there.keys is not None:
        found = {*there.keys.tolist()}
        return [key for key in dict.fromkeys(keys) if key not in found]
    return [str(each) for each in sorted({*(ids or ())} - {*there.ids.tolist()})]


def _keys(text: str | None, file: Path | None) -> list[str] | None:
    """Return the keys that are asked for; None: none are. Raises UsageError."""
    if text is not None and file is not None:
        raise UsageError("--keys and --keys_file: leave out one of them.")
    if file is None:
        return None if text is None else text.split(",")
    try:
        return file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--keys_file {file} cannot be read: {error}.") from error


def _ids(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--ids {text}: write whole numbers, with commas between them.") from error
    if beyond := [i for i in found if not -(2**63) <= i < 2**63]:
        raise UsageError(f"--ids {beyond[0]}: an id has 64 bits.")
    return found


@checkpoint.command()
@_named("a")
@_named("b")
@outputs()
def diff(a: str, b: str, output: str) -> int:
    """Compare two checkpoints; exit code 1 where values or rows differ.

    The optimizer's state is not looked at.
    """
    from ..jobs.job import Report
    from ..serve import told
    from ..serve.compare import compare

    with _opened(a, b) as (one, other):
        found = compare(one, other)
    print_report(Report(found, lambda wide: told.differences(found, wide)), output)
    return 0 if found["same"] else 1


@checkpoint.command()
@_named("checkpoint")
@click.argument("out", type=LocalPath(path_type=Path))
@click.option(
    "--rows",
    "form",
    type=click.Choice(["parquet", "safetensors"]),
    default="parquet",
    show_default=True,
    help="Files of the tables.",
)
@click.option("--state", is_flag=True, help="The optimizer's state too.")
def convert(checkpoint: str, out: Path, form: str, state: bool) -> None:
    """Write a checkpoint as files for others into a new folder OUT.

    dense.safetensors has the dense values by the model's names, TABLE.parquet (or
    TABLE.safetensors) the rows of each table, about.json what the checkpoint says of itself.
    """
    from ..serve import convert as convert_

    with _opened(checkpoint) as (found,):
        folder = convert_.convert(found, out, form, state)
    click.echo(f"wrote {folder}: {', '.join(sorted(file.name for file in folder.iterdir()))}")


@checkpoint.command()
@click.argument("model_def")
@click.argument("out", type=LocalPath(path_type=Path))
@click.option("--model_zoo", default="", metavar="DIR", help="A folder of definitions.")
@click.option("--model_params", default="", metavar="K=V,...", help="Arguments of model().")
@click.option(
    "--dense",
    type=LocalPath(path_type=Path),
    metavar="FILE",
    help="Dense values: safetensors, by the names of the model's state_dict().",
)
@click.option(
    "--rows",
    multiple=True,
    metavar="TABLE=FILE",
    help="Rows of a table: Parquet (id, weight), safetensors or .npz (ids, weight).",
)
@click.option("--partial", is_flag=True, help="What --dense lacks begins with first values.")
@click.option(
    "--ps_embedding_threshold",
    type=click.IntRange(0),
    metavar="BYTES",
    help="As of the job that is to begin from it.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), metavar="N")
def make(
    model_def: str,
    out: Path,
    dense: Path | None,
    rows: tuple[str, ...],
    partial: bool,
    seed: int,
    **flags: Any,
) -> None:
    """Make a checkpoint in a new folder OUT of values that were trained elsewhere.

    `edl train --checkpoint_dir_for_init OUT` begins from it, with the optimizer's state afresh.
    """
    from ..common.settings import JobSettings
    from ..common.values import convert as typed
    from ..model_zoo.spec import load_definition
    from ..serve import make as make_

    threshold = flags["ps_embedding_threshold"]
    if threshold is None:
        threshold = JobSettings.ps_embedding_threshold
    params = typed(flags["model_params"], dict[str, Any], "--model_params")
    definition = load_definition(model_def, flags["model_zoo"], params, training=False)
    given = values_from(dense, rows, partial)
    if given is None:
        raise UsageError(
            "There is nothing to begin from: give --dense, or --rows without --partial."
        )
    made = make_.make(definition, given, out, threshold_bytes=threshold, seed=seed)
    click.echo(f"wrote {made}; next: edl train --checkpoint_dir_for_init {out}")


def values_from(
    dense: Path | None, rows: Sequence[str], partial: bool, prefix: str = ""
) -> Given | None:
    """Return the files of values that were trained elsewhere; None: there are none.

    `rows`: TABLE=FILE each. `prefix`: of the flags' names. Raises UsageError.
    """
    from ..serve.make import Given

    found: dict[str, Path] = {}
    for each in rows:
        table, equals, path = each.rpartition("=")
        if not equals or not table or table in found:
            raise UsageError(f"--{prefix}rows {each}: write TABLE=FILE, once for each table.")
        found[table] = Path(path)
    if partial and dense is None:
        raise UsageError(f"--{prefix}partial is of --{prefix}dense: give that, or leave it out.")
    return Given(dense, found, partial) if dense is not None or found else None
