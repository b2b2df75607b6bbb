"""The result of a job: its metrics, its checkpoint, and what can be done with these."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.errors import UsageError
from ..common.locations import is_local
from ..jobs.job import Status

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Result:
    """A job that has ended: done, or stopped in order.

    `exit_code` is that of `edl train`: 0, 3 where records were quarantined, 130 where it was
    stopped. `history` has each evaluation, `path` is the job's folder; "" in a cluster.
    """

    name: str
    state: str
    exit_code: int
    metrics: dict[str, Any]
    history: list[dict[str, Any]] = field(repr=False)  # pandas.DataFrame takes it
    checkpoint: str | None
    path: str
    restarts: dict[str, int] = field(repr=False)
    quarantined: list[dict[str, Any]] = field(repr=False)
    status: Status = field(repr=False)  # the last, as `edl status -o json` prints it

    @classmethod
    def of(cls, status: Status, folder: Path | None) -> Result:
        """Return what a job's last status says; `folder`: the job's, on this machine."""
        rows = status.get("evaluations") or []
        history = [{"version": r["version"], "epoch": r["epoch"], **r["metrics"]} for r in rows]
        return cls(
            name=str(status["job_name"]),
            state=str(status["state"]),
            exit_code=int(status.get("exit_code") or 0),
            metrics=dict(status.get("metrics") or {}),
            history=history,
            checkpoint=status.get("checkpoint"),
            path="" if folder is None else str(folder),
            restarts=dict(status.get("restarts") or {}),
            quarantined=list(status.get("quarantined") or []),
            status=status,
        )

    @property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Points (version, value) of each curve by name: loss, records_per_s, each metric.

        Of the training they are read from the job's folder; there are none of a job in a cluster.
        """
        from ..jobs.history import Reader, evaluated

        lines = Reader(Path(self.path)).lines() if self.path else []
        told = [(line["version"], line["scalars"]) for line in lines if "scalars" in line]
        found: dict[str, dict[int, float]] = {}
        for version, scalars in [*told, *evaluated(self.status)]:
            for name, value in scalars.items():  # a master that was started again tells twice
                found.setdefault(name, {})[version] = value
        return {name: sorted(points.items()) for name, points in found.items()}

    @property
    def goodput(self) -> dict[str, float]:
        """The seconds that machines were useful, recomputed, were starting or idle, in sum."""
        from ..dashboard.model import goodput

        return goodput(self.status)

    def load_model(self, **options: Any) -> nn.Module:
        """Return the trained model in plain torch, with its tables. `options`: as of edl.load."""
        from ..serve.trained import load

        return load(self.reachable(), **options)

    def export(self, out: str | Path, *forms: str, **wish: Any) -> dict[str, Any]:
        """Write the model into a new folder or URL, as `edl export` does; return its manifest.

        `forms`: torch (unless said), onnx, rows, embedding. `wish`: rows_dtype, rows,
        inside_nbytes.
        """
        from ..serve.export import Wish, export

        return export(self.reachable(), str(out), Wish(forms=forms or ("torch",), **wish))

    def resume(self, **changes: Any) -> Result:
        """Go on with the job at its last record, as edl.train(resume=...), and return its result.

        `changes`: what is to be other than it was, num_epochs for example.
        """
        from .run import train

        if not self.path and (self.checkpoint is None or is_local(self.checkpoint)):
            raise UsageError(
                f"Job {self.name!r} was one of a cluster: go on with it by edl.train(resume=...), "
                "a path of its pods or a URL, and with runtime, image and volumes as before."
            )
        return train(resume=self.status.get("resume") or self.path or self.checkpoint, **changes)

    def reachable(self) -> str:
        """Return the newest checkpoint, which this machine can read. Raises UsageError."""
        if self.checkpoint is None:
            raise UsageError(f"Job {self.name!r} has left no checkpoint: it has no model to load.")
        if not self.path and is_local(self.checkpoint):
            raise UsageError(
                f"The checkpoint of job {self.name!r}, {self.checkpoint}, is one of its pods: copy "
                "it here (`edl cp`), or give the job a checkpoint_dir that is a URL."
            )
        return self.checkpoint
