"""`edl zoo`: make, list, check definitions of models, put them into an image."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from ..common.errors import UsageError
from .options import complete_definitions, flags_given
from .output import say
from .paths import LocalPath


def _definitions_or_files(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    file = CompletionItem(incomplete, type="file")
    return [file, *complete_definitions(ctx, param, incomplete)]


_definition_options = click.option(
    "--model_zoo", default="", metavar="PATH", help="Folder of definitions, searched first."
)


@click.group()
def zoo() -> None:
    """Definitions of models: make, list, check, put into an image."""


@zoo.command()
@click.argument("folder", type=LocalPath())
@click.option("--name", metavar="TEXT", help="Name of the definition; default: the folder's.")
def init(folder: str, name: str | None) -> None:
    """Make a folder with a definition that trains at once."""
    from ..model_zoo.scaffold import init_definition

    files = init_definition(folder, name)
    for path in files:
        click.echo(f"wrote {path}")
    command = ["edl", "zoo", "check", str(files[0]), "--training_data", f"{folder}/train.csv"]
    click.echo(f"next: {shlex.join(command)}")


@zoo.command("list")
@_definition_options
def list_zoo(model_zoo: str) -> None:
    """Show the definitions that --model_def can name."""
    from ..model_zoo.catalogue import list_definitions

    for name, origin, about in list_definitions(model_zoo):
        say(f"{name:<18} {about}  ({origin})")


@zoo.command()
@click.argument("model_def", shell_complete=_definitions_or_files)
@_definition_options
@click.option("--model_params", default="", metavar="K=V,...", help="Arguments of model().")
@click.option("--optimizer_params", default="", metavar="K=V,...", help="Those of optimizer().")
@click.option("--teacher_params", default="", metavar="K=V,...", help="Arguments of teacher().")
@click.option("--training_data", default="", metavar="PATH", help="Data to try a batch of.")
@click.option("--data_reader_params", default="", metavar="K=V,...", help="The reader's arguments.")
@click.option("--schema", default="", metavar="FILE", help="Types of columns (edl data schema).")
@click.option("--minibatch_size", default=64, type=click.IntRange(1), help="Records to try.")
def check(model_def: str, training_data: str, **flags: Any) -> int:
    """Check a definition, and try it on a batch; exit code 2 where it is not sound."""
    from ..model_zoo.check import check_file

    for name in sorted(flags_given() & {"data_reader_params", "schema", "minibatch_size"}):
        if not training_data:
            raise UsageError(
                f"--{name} is about the data: give --training_data too, or leave it out."
            )
    findings = check_file(model_def, training_data, **flags)
    for finding in findings:
        say(str(finding))
    return 2 if any(finding.level == "error" for finding in findings) else 0


@zoo.command()
@click.argument("folder", type=LocalPath(path_type=Path))
@click.option("--image", required=True, metavar="NAME", help="Name of the image, with its tag.")
@click.option(
    "--base_image", default="", metavar="NAME", help="An image with edl; default: edl:VERSION."
)
@click.option(
    "--extra_pypi_index", default="", metavar="URL", help="One more index for requirements.txt."
)
@click.option("--dry_run", is_flag=True, help="Print the Dockerfile; build nothing.")
def build(folder: Path, image: str, base_image: str, extra_pypi_index: str, dry_run: bool) -> None:
    """Build an image of a folder of definitions, by docker or buildah.

    The folder goes to /model_zoo, its requirements.txt is installed; a Dockerfile in it is used as
    it is.
    """
    from ..model_zoo import image as image_

    if dry_run:
        click.echo(image_.dockerfile(folder, base_image, extra_pypi_index), nl=False)
        return
    image_.build(folder, image, base_image, extra_pypi_index)
    click.echo(f"built {image}; next: edl zoo push {image}")


@zoo.command()
@click.argument("image")
def push(image: str) -> None:
    """Push an image to its registry, by docker or buildah."""
    from ..model_zoo import image as image_

    image_.push(image)
    click.echo(f"pushed {image}")
