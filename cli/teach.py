"""`edl teach` and `edl registry`: teachers of no job, and where students of many jobs find them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..common.errors import UsageError
from .options import NAMES, flags_given

if TYPE_CHECKING:
    from ..registry.registering import Place


@click.command(context_settings=NAMES)
@click.argument("model_def")
@click.option("--model_zoo", default="", metavar="FOLDER", help="Folder of definitions.")
@click.option("--teacher_params", default="", metavar="K=V,...", help="Arguments of teacher().")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port; 0: any free one.")
@click.option(
    "--batch_size", default=0, type=click.IntRange(0), help="Records of a batch; 0: searched."
)
@click.option(
    "--queue_delay_s",
    default=0.0,
    type=click.FloatRange(0),
    help="How long a batch that is not full waits for more.",
)
@click.option("--replies", default="float32", type=click.Choice(["float32", "float16"]))
@click.option("--device", default="auto", type=click.Choice(["auto", "cpu", "cuda"]))
@click.option("--registry", default="", metavar="HOST:PORT", help="Registry to register at.")
@click.option("--name", default="", help="Name to register under.  [default: the definition's]")
@click.option(
    "--ttl_s",
    default=15.0,
    show_default=True,
    help="How long the registry knows a teacher that it does not hear of.",
)
def teach(
    model_def: str,
    model_zoo: str,
    teacher_params: str,
    port: int,
    batch_size: int,
    queue_delay_s: float,
    replies: str,
    device: str,
    **registered: Any,
) -> None:
    """Answer students with a definition's teacher, until stopped.

    Prints the address for `edl train --teachers` and for DistillReader, and the variable by which
    students may ask; where EDL_TEACHERS_IDENTITY is set already, that identity is used. With
    --registry, students find it by its name: edl://HOST:PORT/NAME.
    """
    place = _place(model_def, **registered)
    from ..common.values import convert
    from ..distill.alone import serve
    from ..distill.teaching import Teaching
    from ..model_zoo.spec import load_definition
    from ..nn.device import choose_device

    params = convert(teacher_params, dict[str, Any], "--teacher_params")
    definition = load_definition(model_def, model_zoo, training=False, teacher_params=params)
    teaching = Teaching(definition, choose_device(device, 0), replies=replies)
    serve(
        teaching,
        {"fingerprint": teaching.fingerprint, "definition": definition.name},
        port=port,
        max_batch_size=batch_size,
        max_queue_delay_s=queue_delay_s,
        say=click.echo,
        place=place,
    )


def _place(model_def: str, registry: str, name: str, ttl_s: float) -> Place | None:
    """Return where to register, once the registry has been asked; None: nowhere.

    Raises UsageError, Unauthenticated.
    """
    if not registry:
        if flags_given() & {"name", "ttl_s"}:
            raise UsageError(
                "--name and --ttl_s are of --registry: say which (--registry HOST:PORT)."
            )
        return None
    from ..distill.alone import check_place
    from ..registry.registering import Place

    place = Place(registry, name or Path(model_def).stem, ttl_s)
    check_place(place)
    return place


@click.command()
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Port; 0: any free one.")
def registry(port: int) -> None:
    """Tell students which teachers have registered, until stopped.

    Prints its address, for `edl teach --registry` and edl://HOST:PORT/NAME, and the variable by
    which teachers and students may call; where EDL_TEACHERS_IDENTITY is set already, that identity
    is used. It holds nothing on disk: teachers register again after it was started again.
    """
    from ..registry.serve import serve

    serve(port, click.echo)
