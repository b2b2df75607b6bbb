"""An EdlJob that counts its records and waits for the scheduler, and the statuses of several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.jobs import ZOO, write_records
from tools.kube_api import Object
from tools.kube_namespace import Namespace
from tools.kube_objects import IMAGE, phase, volumes


def counting(folder: Path, name: str, records: int, settings: Object, **spec: Any) -> Object:
    """Return the job: its data and its checkpoints lie in `folder` (kube_objects.volumes).

    `settings` and `spec` are its own, beside or instead of what all such jobs have.
    """
    common = {
        "model_zoo": str(ZOO),
        "model_def": "counting",
        "training_data": str(write_records(folder / f"{name}.npz", records)),
        "use_async": True,
        "checkpoint_dir": str(folder / name),
    }
    made = {
        "image": IMAGE,
        "suspend": True,
        "scheduling": {},
        "settings": {**common, **settings},
        **volumes(folder),
        **spec,
    }
    about = {"name": name}
    return {"apiVersion": "edl.dev/v1alpha1", "kind": "EdlJob", "metadata": about, "spec": made}


def statuses(
    here: Namespace, until: Callable[[dict[str, Object]], object], within_s: float
) -> dict[str, Object]:
    """Return the statuses of all EdlJobs, by name, as soon as `until` holds; none may fail."""
    __tracebackhide__ = True

    def look(jobs: dict[str, Object]) -> dict[str, Object] | None:
        found = {name: each.get("status", {}) for name, each in jobs.items()}
        assert "Failed" not in map(phase, jobs.values()), found
        return found if until(found) else None

    return here.wait("edljobs", look, within_s=within_s)
