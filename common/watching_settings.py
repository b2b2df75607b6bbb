"""The settings of a job that say what it tells those who watch it, and where."""

from __future__ import annotations

from dataclasses import dataclass

from .knobs import knob

# What a job can be written to, and the library that it takes; "": none.
_OF_OTHERS = ("wandb", "mlflow", "trackio")
LOGGERS = {**{name: name for name in _OF_OTHERS}, "tensorboard": "", "jsonl": ""}


@dataclass(frozen=True)
class WatchingSettings:
    """The part of a job's settings that is about its logs, its curves and its port."""

    log_level: str = knob(
        "info", "Least severe line logged.", "Watching", choices=("debug", "info", "warning")
    )
    log_format: str = knob("text", "Format of the log.", "Watching", choices=("text", "json"))
    tensorboard: bool = knob(True, "Write TensorBoard scalars under --output.", "Watching")
    logger: str = knob(
        "",
        "Where a process beside the master writes the job's curves, settings and events: one run "
        "for one job, whatever dies and goes on (docs/loggers.md). Several: with commas, or again.",
        "Watching",
        "loggers",
        choices=tuple(LOGGERS),
        many=True,
        of=("train",),
    )
    run: str = knob("", "The run of the loggers, which a resumed job goes on with.", "internal")
    port: int = knob(0, "Port of the master; 0: any.", "Watching")

    @property
    def loggers(self) -> tuple[str, ...]:
        """Return the names of the loggers."""
        return tuple(self.logger.split(",")) if self.logger else ()
