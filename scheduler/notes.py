"""The scheduler's words in an EdlJob, from where its controller takes them into its status. Pure.

They are an annotation, since the status is the controller's alone: a word for programs and a
sentence. Another one tells whose quota of Kueue a job runs by. They are written only where they
changed; words that differ in figures alone are left for a while, since quotas in use go up and down
with everybody's jobs.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..common.plain import plain, same_but_figures
from ..k8s import job as edljob
from ..k8s import names
from ..k8s.api import Object
from .gate import Gate
from .jobs import Plan

_MOST = 600  # characters of a sentence
_ANEW_S = 60.0  # until figures alone are written anew


class Notes:
    """The annotations that are to be written, and when figures were written last."""

    def __init__(self) -> None:
        """Begin with nothing written."""
        self._written: dict[str, float] = {}  # by uid

    def patches(
        self,
        jobs: Mapping[str, Object],
        plan: Plan,
        ignored: Mapping[str, str],
        gates: Mapping[str, Gate],
        now: float,
    ) -> dict[str, Object]:
        """Return merge patches of the EdlJobs whose annotations change, by name.

        `ignored`: what is in the way, by name; `gates`: of Kueue, by name.
        """
        self._written = {
            uid: self._written[uid]
            for uid in (each["metadata"]["uid"] for each in jobs.values())
            if uid in self._written
        }
        found = {}
        for name, job in jobs.items():
            says = ignored.get(name, "")
            waits = edljob.is_queued(job)
            if not says and waits and name in plan and not plan[name].shape.workers:
                says = plan[name].why
            wanted = {names.SAYS: "", names.ADMITTED: ""}
            if _is_told(job):
                reason = _reason(says, waits, gates[name])
                wanted[names.SAYS] = f"{reason}: it {says}" if says else ""
                wanted[names.ADMITTED] = "" if job["spec"].get("suspend") else gates[name].queue
            changed = self._changed(job, wanted, now)
            if changed:
                found[name] = {"metadata": {"annotations": changed}}
        return found

    def _changed(self, job: Object, wanted: Mapping[str, str], now: float) -> dict[str, str | None]:
        about = job["metadata"]
        has = about.get("annotations") or {}
        changed: dict[str, str | None] = {}
        queue, is_suspended = wanted[names.ADMITTED], bool(job["spec"].get("suspend"))
        # that of a job that runs stays where its gate is closed: by it the job is suspended
        if (has.get(names.ADMITTED) or "") != queue and (queue or is_suspended):
            changed[names.ADMITTED] = queue or None
        said, says = has.get(names.SAYS) or "", plain(wanted[names.SAYS], _MOST)
        if said != says:
            figures_alone = bool(says) and same_but_figures(said, says)
            if not figures_alone or now - self._written.get(about["uid"], 0.0) >= _ANEW_S:
                changed[names.SAYS] = says or None
                self._written[about["uid"]] = now
        return changed


def _is_told(job: Object) -> bool:
    """Tell whether the scheduler says anything of a job: not of one that others suspended."""
    return (job.get("status") or {}).get("phase") not in names.OVER and not edljob.held_by(job)


def _reason(says: str, waits: bool, gate: Gate) -> str:
    if says.startswith("is left alone"):
        return "LeftAlone"
    if not waits:
        return "Limited"
    return "WaitingForRoom" if gate.is_open else "WaitingForQuota"
