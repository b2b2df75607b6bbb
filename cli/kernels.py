"""`edl kernels`: compile ahead what the first job on a machine would wait for."""

from __future__ import annotations

import click

from ..common.errors import UsageError
from .options import NAMES

_MOST_DIM = 1 << 20


@click.command(context_settings=NAMES)
@click.option("--optimizer", "optimizers", multiple=True, help="Of this one only; may be repeated.")
@click.option(
    "--dim",
    "dims",
    type=click.IntRange(1, _MOST_DIM),
    multiple=True,
    help="For tables of rows of so many values; may be repeated. Default: 16, and any that is no "
    "multiple of 8 up to 128.",
)
def kernels(optimizers: tuple[str, ...], dims: tuple[int, ...]) -> None:
    """Compile the kernels of servers and workers, which are kept for all jobs of this machine."""
    from ..ps.prepare import DIMS, OPTIMIZERS, compile_ahead

    for name in optimizers:
        if name not in OPTIMIZERS:
            raise UsageError(f"--optimizer {name}: choose among {', '.join(OPTIMIZERS)}")
    click.echo("compiling, once for an installation:")
    for part, seconds in compile_ahead(optimizers or list(OPTIMIZERS), dims or DIMS):
        click.echo(f"  {part:25} {seconds:5.1f} s")
