"""`edl export`: a trained model for those who have no job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ..common.errors import CheckpointError, UsageError
from .options import NAMES
from .output import Function, say
from .place import complete_jobs

if TYPE_CHECKING:
    from ..serve.export import Wish

_FORMS = ["torch", "onnx", "rows", "embedding"]


def form_options(name: str) -> Callable[[Function], Function]:
    """Add the option that says what a model is exported to."""
    return click.option(
        name,
        "forms",
        multiple=True,
        type=click.Choice(_FORMS),
        help="What is written, several by several flags: a program of torch.export, or ONNX, which "
        "get rows out of table files; tables and dense values for others; a program with the "
        "tables inside.  [default: torch]",
    )


def definition_options(command: Function) -> Function:
    """Add the options that say which definition a checkpoint is opened by, and on which records."""
    for option in (
        click.option(
            "--data",
            default="",
            metavar="FILE",
            help="A few records.  [default: the job's --training_data]",
        ),
        click.option("--model_zoo", default="", metavar="FOLDER", help="Folder of definitions."),
        click.option("--model_def", default="", help="Definition.  [default: the job's]"),
    ):
        command = option(command)
    return command


@click.command(context_settings=NAMES)
@click.argument("checkpoint", metavar="CHECKPOINT", shell_complete=complete_jobs)
@click.argument("out")
@form_options("--to")
@click.option(
    "--rows_dtype",
    type=click.Choice(["own", "float32", "float16", "int8"]),
    default="own",
    show_default=True,
    help="What rows are kept as; own: as the job does. How far they are off is told.",
)
@click.option(
    "--rows",
    type=click.Choice(["parquet", "safetensors"]),
    default="parquet",
    show_default=True,
    help="Files of --to rows.",
)
@click.option(
    "--inside_mib",
    default=2048,
    show_default=True,
    type=click.IntRange(1),
    help="The most that tables may take in --to embedding.",
)
@definition_options
def export(checkpoint: str, out: str, forms: tuple[str, ...], **given: Any) -> None:
    """Export a model into a new folder OUT, or a URL, which others run without the job.

    CHECKPOINT is a checkpoint, a folder of them (the newest that is whole is taken), or a job's
    name or folder.
    """
    from ..serve.export import Wish
    from ..serve.from_checkpoint import Options

    wish = Wish(
        forms=tuple(dict.fromkeys(forms)) or ("torch",),
        rows_dtype=given["rows_dtype"],
        rows=given["rows"],
        inside_nbytes=given["inside_mib"] << 20,
        options=Options(
            definition=given["model_def"], model_zoo=given["model_zoo"], data=given["data"]
        ),
    )
    write(checkpoint, out, wish)


def write(checkpoint: str, out: str, wish: Wish) -> None:
    """Write an export, and tell what it is. Raises UsageError."""
    from ..serve import told
    from ..serve.export import export

    try:
        made = export(checkpoint, out, wish)
    except CheckpointError as error:  # it is what the user named
        raise UsageError(str(error)) from error
    for line in told.exported(out, made):
        say(line)
