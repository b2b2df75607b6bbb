"""An EdlJob of the tests that a queue of Kueue holds, and what becomes of it on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edl.scheduler.workloads import QUEUE_LABEL
from tools.kube import PATIENCE_S
from tools.kube_api import Object
from tools.kube_jobs import counting
from tools.kube_namespace import Namespace
from tools.kube_objects import condition, phase

RECORDS, EPOCHS = 4096, 4


def job(folder: Path, name: str = "one", **spec: Any) -> Object:
    """Return a job that goes on until the file `go` is there, and then comes to its end.

    `spec`: instead of parts of its spec.
    """
    small = {"requests": {"cpu": "500m", "memory": "512Mi"}}
    usual = {
        "master": {"resources": small},
        "ps": {"replicas": 1, "resources": small},
        "worker": {"replicas": 1, "minReplicas": 1, "maxReplicas": 3, "resources": small},
    }
    settings = {
        "model_params": {"delay_s": 1.0, "until": str(folder / "go")},
        "minibatch_size": 16,
        "num_minibatches_per_task": 4,
        "num_epochs": EPOCHS,
    }
    made = counting(folder, name, RECORDS, settings, **{**usual, **spec})
    made["metadata"]["labels"] = {QUEUE_LABEL: "team"}
    return made


class Life:
    """What becomes of the job `one`."""

    def __init__(self, here: Namespace) -> None:
        self._here = here

    def status(self, until: Callable[[Object], object], within_s: float = PATIENCE_S) -> Object:
        def look(jobs: dict[str, Object]) -> Object | None:
            found = jobs["one"].get("status") or {}
            assert phase(jobs["one"]) != "Failed", found
            return found if until(found) else None

        return self._here.wait("edljobs", look, within_s=within_s)

    def runs(self, workers: int) -> Object:
        wanted = f"{workers}/{workers}"
        return self.status(
            lambda s: s.get("phase") == "Running" and s.get("workersReady") == wanted
        )

    def says(self, words: str) -> Object:
        """Return its status, as soon as that says this."""
        return self.status(lambda s: words in s.get("message", ""))

    def is_held(self, why: str) -> Object:
        """Wait until no pod of it lives, and its status says this."""
        found = self.status(lambda s: s.get("phase") == "Suspended" and why in s.get("message", ""))
        assert self.pods() == []
        return found

    def pods(self) -> list[str]:
        found = self._here.objects("pods", "edl.dev/job-name=one")
        return [name for name, each in found.items() if phase(each) in ("Pending", "Running")]

    def workloads(self, until: Callable[[dict[str, Object]], object]) -> dict[str, Object]:
        return self._here.wait("workloads", lambda found: [found] if until(found) else None)[0]

    def is_admitted(self, name: str) -> None:
        self.workloads(lambda found: condition(found.get(name, {}), "Admitted") == "True")

    def pieces(self) -> list[str]:
        return sorted(name for name in self._here.objects("workloads") if "-piece-" in name)
