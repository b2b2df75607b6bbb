"""MLflow as a logger: the run is found by its tag, so that it is one whoever began it.

The store can say what it has of each metric. Events are tags, named by their steps.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from .core import EVENTS, Known, Told
from .logger import DONE, FAILED, Run, State

_EXPERIMENT = "edl"
_TAG = "edl.run"
_EVENT = "edl.event."
_MOST_METRICS, _MOST_OTHERS = 1000, 100  # of one request, by MLflow's REST API
_MOST_PARAM, _MOST_TAG = 500, 5000  # characters, of the oldest stores
_STATUS = {DONE: "FINISHED", FAILED: "FAILED"}


class Mlflow:
    """A run of MLflow, in the store of MLFLOW_TRACKING_URI, or where the run began."""

    def __init__(self) -> None:
        self._client: Any = None
        self._uri = self._run_id = ""
        self._began = 0.0

    def open(self, run: Run, state: State) -> Known:
        import mlflow

        given = os.environ.get("MLFLOW_TRACKING_URI")
        self._uri = given or state.get("uri") or mlflow.get_tracking_uri()
        self._began = run.began
        self._client = mlflow.MlflowClient(self._uri)
        self._run_id = self._found(run, state)
        self._client.update_run(self._run_id, status="RUNNING")
        data = self._client.get_run(self._run_id).data
        self._describe(run, data.params)
        known = {
            name: max(point.step for point in self._client.get_metric_history(self._run_id, name))
            for name in data.metrics
        }
        events = [int(tag.removeprefix(_EVENT)) for tag in data.tags if tag.startswith(_EVENT)]
        return {**known, EVENTS: max(events)} if events else known

    def write(self, told: Sequence[Told]) -> bool:
        from mlflow.entities import Metric, RunTag

        metrics = (
            Metric(name, value, round(1000 * (self._began + one.t)), one.step)
            for one in told
            for name, value in one.values.items()
        )
        for part in _parts(metrics, _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=part)
        events = (
            RunTag(f"{_EVENT}{one.step:09}", one.text[:_MOST_TAG]) for one in told if one.text
        )
        for some in _parts(events, _MOST_OTHERS):
            self._client.log_batch(self._run_id, tags=some)
        return True

    def state(self) -> State:
        return {"uri": self._uri, "run_id": self._run_id}

    def finish(self, outcome: str) -> None:
        status = _STATUS.get(outcome, "KILLED")
        self._client.set_terminated(self._run_id, status, round(1000 * time.time()))

    def _found(self, run: Run, state: State) -> str:
        """Return the id of the run in this store, where it is begun if it is not there."""
        if state.get("run_id") and state.get("uri") == self._uri:
            return str(state["run_id"])
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        runs = self._client.search_runs([experiment], f"tags.`{_TAG}` = '{run.id}'", max_results=1)
        if runs:
            return str(runs[0].info.run_id)
        began = round(1000 * run.began)
        made = self._client.create_run(experiment, began, {_TAG: run.id}, run_name=run.id)
        return str(made.info.run_id)

    def _describe(self, run: Run, there: dict[str, str]) -> None:
        """Write the settings: those that differ from the first job's, which stand, as tags."""
        from mlflow.entities import Param, RunTag

        params = {name: _text(value) for name, value in run.params.items()}
        tags = {
            **run.tags,
            **{
                f"edl.{run.job}.{name}": value
                for name, value in params.items()
                if there.get(name, value) != value
            },
        }
        new = (Param(name, value) for name, value in params.items() if name not in there)
        for part in _parts(new, _MOST_OTHERS):
            self._client.log_batch(self._run_id, params=part)
        told = (RunTag(name, value) for name, value in tags.items())
        for some in _parts(told, _MOST_OTHERS):
            self._client.log_batch(self._run_id, tags=some)


def _text(value: object) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:_MOST_PARAM]


def _parts(items: Iterable[Any], most: int) -> Iterator[list[Any]]:
    """Yield the items in lists of at most so many."""
    rest = iter(items)
    while part := list(islice(rest, most)):
        yield part
