"""EdlJobs that break a rule of the resource, by what they say, and the sentence of each."""

from __future__ import annotations

from typing import Any

_LAUNCH = {"command": "launch", "settings": {"script": "/train.py"}}
_EVALUATED = {"model_def": "iris", "validation_data": "/d", "checkpoint_dir_for_init": "/c"}
_LEASED = "no task would ever be leased."
_OWN = ("controller", "dashboard", "deny-ingress", "grafana", "scheduler", "scheduler-quotas")

# Name, fields of the spec, sentence.
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    *(
        (
            name,
            {},
            (
                "metadata.name is made of at most 50 lower-case letters, digits and dashes, not "
                f"'{name}'."
            ),
        )
        for name in ("a" * 51, "a" * 63, "a" * 64, "a.b")
    ),
    *((name, {}, f"metadata.name: {name} is edl's own: choose another one.") for name in _OWN),
    (
        "tried",
        {**_LAUNCH, "ps": {"replicas": 2}},
        "spec.ps: a script's job has no parameter servers: leave it out.",
    ),
    (
        "tried",
        {**_LAUNCH, "ps": {"replicas": 1, "nodeSelector": {"a": "b"}}},
        "spec.ps: a script's job has no parameter servers: leave it out.",
    ),
    (
        "tried",
        {"command": "evaluate", "teacher": {"replicas": 1}},
        "spec.teacher: only a job that trains has teachers: leave it out.",
    ),
    (
        "tried",
        {"scheduling": {"priority": 1}, "worker": {"replicas": 2}},
        "spec.worker.maxReplicas is missing: say the most workers that it may be given.",
    ),
    (
        "tried",
        {"worker": {"replicas": 1, "minReplicas": 2}},
        f"spec.worker.minReplicas is more than spec.worker.replicas: {_LEASED}",
    ),
    (
        "tried",
        {"worker": {"replicas": 9, "minReplicas": 4, "maxReplicas": 3}},
        f"spec.worker.minReplicas is more than spec.worker.maxReplicas: {_LEASED}",
    ),
    (
        "tried",
        {"worker": {"replicas": 2, "highFraction": 0.5, "priorityClassName": "edl-low"}},
        "spec.worker.highFraction and spec.worker.priorityClassName: leave out one of them.",
    ),
    (
        "tried",
        {"worker": {"replicas": 2, "low": {"nodeSelector": {"a": "b"}}}},
        (
            "spec.worker.low is of the workers that are edl-low: say in spec.worker.highFraction "
            "how many are not."
        ),
    ),
    (
        "tried",
        {"preemptible": False, "worker": {"replicas": 2, "highFraction": 0.5}},
        (
            "spec.preemptible false and spec.worker.highFraction: workers that are edl-low are "
            "there to be preempted: leave out one of them."
        ),
    ),
    (
        "tried",
        {"teacher": {"replicas": 3, "maxReplicas": 2}},
        "spec.teacher.maxReplicas is below spec.teacher.replicas.",
    ),
]

# What looks alike and breaks none.
WHOLE: list[tuple[str, dict[str, Any]]] = [
    ("a" * 50, {}),
    ("schedulers", {}),
    ("tried", {**_LAUNCH, "ps": {}}),
    ("tried", {**_LAUNCH, "worker": {"replicas": 2, "minReplicas": 2, "maxReplicas": 4}}),
    ("tried", {"command": "evaluate", "settings": _EVALUATED, "teacher": {"replicas": 0}}),
    ("tried", {"scheduling": {}, "worker": {"minReplicas": 4, "maxReplicas": 4}}),
    ("tried", {"worker": {"replicas": 10000, "minReplicas": 10000, "maxReplicas": 10000}}),
    ("tried", {"worker": {"replicas": 2, "highFraction": 0.5, "low": {"nodeSelector": {}}}}),
    ("tried", {"teacher": {"replicas": 2, "maxReplicas": 2}}),
    ("tried", {"preemptible": False, "worker": {"replicas": 2, "priorityClassName": "edl-low"}}),
    ("tried", {"preemptible": True, "worker": {"replicas": 2, "highFraction": 0.5}}),
]
