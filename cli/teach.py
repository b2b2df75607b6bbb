"""`edl teach`: a teacher of no job, which students of several jobs and scripts may ask."""

from __future__ import annotations

from typing import Any

import click

from .options import NAMES


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
def teach(
    model_def: str,
    model_zoo: str,
    teacher_params: str,
    port: int,
    batch_size: int,
    queue_delay_s: float,
    replies: str,
    device: str,
) -> None:
    """Answer students with a definition's teacher, until stopped.

    Prints the address for `edl train --teachers` and for DistillReader, and the variable by which
    students may ask; where EDL_TEACHERS_IDENTITY is set already, that identity is used.
    """
    from ..common.values import convert
    from ..distill.alone import serve
    from ..distill.teaching import Teaching
    from ..model_zoo.spec import load_definition
    from ..nn.device import choose_device

    params = convert(teacher_params, dict[str, Any], "--teacher_params")
    definition = load_definition(model_def, model_zoo, teacher_params=params)
    teaching = Teaching(definition, choose_device(device, 0), replies=replies)
    serve(
        teaching,
        {"fingerprint": teaching.fingerprint, "definition": definition.name},
        port=port,
        max_batch_size=batch_size,
        max_queue_delay_s=queue_delay_s,
        say=click.echo,
    )
