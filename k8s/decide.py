"""Decide about one EdlJob: from what there is to what is to be made, changed, deleted. Pure.

Level-triggered: it looks at the state, never at what has happened, so that events may be lost,
doubled or late, and a controller may be killed between any two actions. The order of the actions is
part of it:

- the number of a new master is written into the status, against the version that was read, before
  its pod is made; so no name comes twice (a name holds the Lease). Two controllers, one between
  these two actions, may make two masters: the older one is deleted at the next look;
- a job that is suspended loses its master first, which would replace the others;
- what an earlier EdlJob of this name has left is deleted before anything is made: its status would
  be taken for this one's.

A job is decided by its master's word alone (job_status.exit_code). Until then a master that is
gone, ended or being deleted is replaced; the Lease lets the new one wait for the old. Of one that
died soon after its start, the next but one waits, longer each time. One that has not begun and
of which the spec asks for another by now is deleted and made anew.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Sequence

from ..common import launched
from ..common.errors import UsageError
from ..common.identity import Identity
from . import copying, ends, job_config, job_status, masters, names, objects, observe, oom, queued
from . import job as edljob
from .allowed import USUAL, Installed, NotAllowed
from .api import Object
from .conditions import Problem
from .job import Wanted
from .job_status import Situation
from .masters import IDLE_S, Memory
from .plans import Action, Plan, Seen

GOES_S = 10.0  # a master that is told to go takes a second, unless its node is lost
_KILL_S = 1  # of grace for one that does not; 0 would forget the pod while it runs
_LEFT_S = 1.0  # until what an earlier job has left is looked at again
_KEPT_MASTERS = 1  # that ended, for their logs

OTHERS = ("Secret", "Service", "NetworkPolicy", "PodDisruptionBudget")


def decide(
    seen: Seen,
    memory: Memory,
    now: float,
    time: str,
    renewed: Callable[[str], Identity],
    installed: Installed = USUAL,
) -> Plan:
    """Decide what is to be done for one EdlJob.

    `now` is the controller's clock, `time` that of the world; `renewed(token)` makes a new identity
    of this token ("": of a new one).
    """
    if seen.job["metadata"]["uid"] != memory.uid:
        memory = Memory(seen.job["metadata"]["uid"])
    return _Decision(seen, memory, now, time, renewed, installed).plan()


class _Decision:
    """One decision: the facts that it is made of, and the actions as they are found."""

    def __init__(
        self,
        seen: Seen,
        memory: Memory,
        now: float,
        time: str,
        renewed: Callable[[str], Identity],
        installed: Installed,
    ) -> None:
        self._installed = installed
        self._job = edljob.said(seen.job)
        self._about: Object = seen.job["metadata"]
        self._name: str = self._about["name"]
        self._generation = int(self._about.get("generation") or 0)
        self._before: Object = seen.job.get("status") or {}
        self._seen = seen
        self._memory = memory
        self._now = now
        self._time = time
        self._renewed = renewed
        self._actions: list[Action] = []
        self._after: list[Action] = []  # after the status
        self._again_s: float | None = None
        self._problem: Problem | None = None
        self._note = ""
        self._over = False
        self._stop = ""  # why it is to stop in order: its deadline is over
        self._lapsed = False  # and it has not
        self._until_s: float | None = None  # until the deadline, or until it is kept no more
        mine = [pod for pod in seen.pods if self._is_mine(pod)]
        self._helpers = job_status.of_role(mine, copying.ROLE)
        self._pods = [pod for pod in mine if pod not in self._helpers]
        self._config = seen.config if self._is_mine(seen.config) else None
        self._told = job_status.told_by(seen.status if self._is_mine(seen.status) else None)
        self._moved = False  # to another volume than the journal's
        if self._has_begun():
            self._job, self._moved = job_config.with_its_volume(self._job, self._config)
        self._spec: Object = self._job["spec"]
        self._masters = max(
            int(self._before.get("masters") or 0),
            *(job_status.number(pod) + 1 for pod in job_status.of_role(self._pods, "master")),
            0,
        )

    def plan(self) -> Plan:
        if self._is_new_in_the_queue():
            # Nothing else: what is written now is looked at anew.
            version = self._about["resourceVersion"]
            body: Object = {"metadata": {"resourceVersion": version}, "spec": {"suspend": True}}
            return Plan([Action("patch", names.KIND, self._name, body)], self._memory, None)
        wanted = self._wanted()
        if not self._left_by_others():
            self._act(wanted)
            runs = any(map(job_status.lives, self._pods))
            kept_s = None if runs else ends.kept_s(self._job, self._time)
            if kept_s is not None and kept_s > 0:
                self._until_s = kept_s
            elif kept_s is not None and not self._memory.refused:
                gone = Action("delete", names.KIND, self._name, uid=self._about["uid"])
                return Plan([gone], self._memory, None)
            self._give_files()
        self._show()
        actions = [*self._actions, *self._after]
        return Plan(actions, self._memory, self._again_s, over=self._over and not actions)

    def _act(self, wanted: Wanted | None) -> None:
        masters_are = self._of_role("master")
        living = [pod for pod in masters_are if _goes_on(pod) and job_status.lives(pod)]
        if job_status.exit_code(self._told, masters_are, self._before) is not None:
            self._over = not any(map(job_status.lives, masters_are))
            if self._over:
                self._end(self._of_role(*names.REPLICAS))  # whom their master could not dismiss
                if job_status.exit_code(self._told, (), self._before) is not None:
                    self._end(masters_are)  # of which other containers run on: its end was taken
            return
        if self._is_late():
            self._lapsed = True
            self._suspend()
            self._over = not any(map(job_status.lives, self._pods))
            return
        if self._spec.get("suspend"):
            self._suspend()
            self._keep_config(wanted, whole=False)
            return
        if wanted is None and self._config is None:
            return
        self._end(living[:-1])  # two controllers at a time have made them; the Lease lets one work
        living = self._watch_master(living, wanted)
        makes = not living and self._now >= self._memory.not_before
        self._keep_others(wanted)
        self._keep_config(wanted, whole=makes)
        if self._problem and self._problem.reason == "NotAllowed":
            return  # what an older controller, or a wider list, has let through is not made again
        if makes:
            self._make_master(wanted)
        elif not living:
            self._again_s = self._memory.not_before - self._now

    def _has_begun(self) -> bool:
        """Tell whether a master of the job has begun, so that its journal may be there."""
        there = map(observe.has_begun, self._of_role("master"))
        return bool(self._told or self._before.get("startTime")) or any(there)

    def _is_new_in_the_queue(self) -> bool:
        """Tell whether the scheduler has to begin a job that nobody has looked at yet.

        Its author says no `suspend`, as with Kueue's own kinds of jobs: a manifest that said `true`
        would suspend the running job whenever it is applied again.
        """
        is_new = not (self._before or self._config or self._pods)
        return is_new and "scheduling" in self._spec and not self._spec.get("suspend")

    def _is_late(self) -> bool:
        """Tell whether the job is to be ended at its deadline; before, it is told to stop."""
        left_s = ends.left_s(self._job, self._time)
        if ends.has_lapsed(self._before):
            return True
        if left_s is None or self._config is None:
            return False
        if left_s > 0:
            self._until_s = left_s
            return False
        self._stop = ends.words(self._spec)
        since = self._now if self._memory.late is None else self._memory.late
        self._memory = dataclasses.replace(self._memory, late=since)
        masters_are = [p for p in self._of_role("master") if observe.deletion(p) is None]
        runs = any(isinstance(observe.observe(pod), observe.Running) for pod in masters_are)
        until_s = since + ends.GIVES_S - self._now
        if not runs or until_s <= 0:
            return True
        self._until_s = until_s
        return False

    def _give_files(self) -> None:
        """Make the pod that gives out files of the job, if somebody wants some."""
        asked = copying.wish(self._job)
        makes, going = copying.changes(self._name, asked, self._helpers)
        for pod in going:
            if "deletionTimestamp" not in pod["metadata"]:
                self._delete("Pod", pod, _KILL_S)
        if makes and asked is not None and job_config.settings(self._config) is not None:
            assert self._config is not None
            templates = job_config.begun(self._config).templates
            if copying.refusal(templates, asked.path):  # which whoever asks has read
                return
            made = copying.template(templates, asked)
            made["metadata"]["name"] = copying.pod_name(self._name, asked.id)
            self._create({"apiVersion": "v1", "kind": "Pod", **made})

    def _suspend(self) -> None:
        """End the pods: the master's first, which would replace the others while it lives."""
        before = self._memory
        self._memory = Memory(
            before.uid, refused=before.refused, going=before.going, late=before.late
        )
        self._end(self._of_role("master"))
        if any(map(job_status.lives, self._of_role("master"))):
            since = self._now if before.going is None else before.going
            self._memory = dataclasses.replace(self._memory, going=since)
            if self._now - since < GOES_S:
                self._again_s = since + GOES_S - self._now
                return
            for pod in filter(job_status.lives, self._of_role("master")):
                if (observe.deletion(pod) or 0) > _KILL_S:  # its journal loses nothing by that
                    self._delete("Pod", pod, _KILL_S)
        self._end(self._of_role("ps"))  # each leaves a snapshot
        saves = self._spec.get("command") == launched.COMMAND  # else whom would they hand back to?
        self._end(self._of_role("worker"), grace_s=None if saves else _KILL_S)
        self._end(self._of_role("teacher"), grace_s=_KILL_S)

    # -- what is wanted

    def _wanted(self) -> Wanted | None:
        try:
            return edljob.wanted(self._job, self._installed)
        except NotAllowed as error:
            self._problem = Problem("NotAllowed", str(error))
            return None
        except UsageError as error:
            self._problem = Problem("InvalidSpec", str(error))
            return None

    def _is_mine(self, found: Object | None) -> bool:
        return found is not None and any(
            owner["uid"] == self._about["uid"]
            for owner in found["metadata"].get("ownerReferences") or []
        )

    def _left_by_others(self) -> bool:
        """Tell whether objects of the job's names are somebody else's.

        Those of an earlier EdlJob of this name are deleted, those of anybody else are left alone.
        """
        found = [
            *(("Pod", pod) for pod in self._seen.pods),
            ("ConfigMap", self._seen.config),
            ("ConfigMap", self._seen.status),
            *(self._seen.others or {}).items(),
        ]
        strange = [(kind, each) for kind, each in found if each and not self._is_mine(each)]
        for kind, each in strange:
            about = each["metadata"]
            owner = (about.get("ownerReferences") or [{}])[0]
            if (owner.get("kind"), owner.get("name")) != (names.KIND, self._name):
                whose = f"{owner['kind']} {owner['name']}" if owner else "somebody"
                self._problem = Problem(
                    "NameTaken",
                    f"the {kind} {about['name']} is {whose}'s: delete it, or give this EdlJob "
                    "another name",
                )
            elif "deletionTimestamp" not in about:
                self._delete(kind, each)
        if strange:
            self._again_s = _LEFT_S
            self._note = "waits for the end of what an earlier EdlJob of this name has left"
        return bool(strange)

    def _of_role(self, *roles: str) -> list[Object]:
        return job_status.of_role(self._pods, *roles)

    def _end(self, pods: Sequence[Object], grace_s: int | None = None) -> None:
        for pod in pods:
            if _goes_on(pod):
                self._delete("Pod", pod, grace_s)

    def _delete(self, kind: str, found: Object, grace_s: int | None = None) -> None:
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        self._actions.append(Action("delete", kind, name, uid=uid, grace_s=grace_s))

    # -- the objects

    def _keep_others(self, wanted: Wanted | None) -> None:
        there = self._seen.others
        if there is None:
            return
        servers = int((self._spec.get("ps") or {}).get("replicas", 1))
        if wanted is None:  # the objects of a job that has begun do not hang on its spec
            begun = job_config.settings(self._config)
            servers = begun.num_ps if begun else servers
        made = {
            "Service": objects.service(self._name),
            "NetworkPolicy": objects.network_policy(self._name),
            "PodDisruptionBudget": objects.disruption_budget(self._name, servers),
        }
        if there["Secret"] is None:
            self._create(objects.secret(self._name, self._renewed("")))
        elif self._comes_back():
            token = base64.b64decode(there["Secret"]["data"]["token"]).decode()
            data = objects.secret(self._name, self._renewed(token))["data"]
            self._actions.append(
                Action("patch", "Secret", names.object_name(self._name), {"data": data})
            )
        for kind, body in made.items():
            if there[kind] is None:
                self._create(body)
        least = made["PodDisruptionBudget"]["spec"]["minAvailable"]
        budget = there["PodDisruptionBudget"]
        if budget is not None and budget["spec"].get("minAvailable") != least:
            change = {"spec": {"minAvailable": least}}  # other servers than before
            name = budget["metadata"]["name"]
            self._actions.append(Action("patch", "PodDisruptionBudget", name, change))

    def _comes_back(self) -> bool:
        """Tell whether the job was suspended and nobody is there who knows the old certificate."""
        was = {each["type"]: each["status"] for each in self._before.get("conditions") or []}
        return was.get("Suspended") == "True" and not any(map(job_status.lives, self._pods))

    def _create(self, body: Object) -> None:
        body["metadata"]["ownerReferences"] = [_owner(self._about)]
        self._actions.append(Action("create", body["kind"], body["metadata"]["name"], body))

    def _keep_config(self, wanted: Wanted | None, whole: bool) -> None:
        """Keep the job's ConfigMap as the spec wants it.

        `whole`: a master is to start from it, so that it may change in all its parts.
        """
        if wanted is None:
            return
        if self._config is None:
            if whole:
                self._create(objects.config(wanted.settings, wanted.templates))
            return
        parts, refused = job_config.changes(
            self._config, self._spec, wanted, self._told, whole, self._stop
        )
        if self._moved:  # a master would begin at record 0 there
            refused.append("spec.jobVolume")
        if refused:
            self._problem = Problem(
                "Fixed",
                f"{', '.join(refused)}: cannot be changed in a job that has begun: put the old "
                "values back, or make another EdlJob",
                fatal=False,
            )
        if parts:
            version = self._config["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "data": parts}
            self._actions.append(Action("patch", "ConfigMap", names.object_name(self._name), body))

    # -- the master

    def _watch_master(self, living: list[Object], wanted: Wanted | None) -> list[Object]:
        """Remember how long the masters live; return those that still do."""
        memory = masters.mended(self._memory, self._generation, self._now)
        if living and wanted and masters.is_outdated(living[-1], wanted.templates["master"]):
            self._end(living[-1:])  # else it would wait for ever for what the spec says no more
            memory, living = masters.replaced(memory), []
        elif living:
            memory, self._again_s = masters.seen(memory, living[-1], self._generation, self._now)
            if not memory.master:  # its image cannot be had
                self._end(living)
                living = []
        elif memory.master:
            last = masters.last_ended(self._of_role("master"))
            memory = masters.died(memory, last is None or observe.has_run(last), self._now)
        self._memory = memory
        self._problem = masters.problem(memory) or self._problem
        if not memory.unpulled:
            self._note = masters.note(memory, self._of_role("master"), living, self._told)
        return living

    def _make_master(self, wanted: Wanted | None) -> None:
        ended = [pod for pod in self._of_role("master") if not job_status.lives(pod)]
        for pod in ended[:-_KEPT_MASTERS]:
            self._delete("Pod", pod)
        self._end(ended[-_KEPT_MASTERS:])  # of which other containers run on
        if wanted is None:  # it goes on as it was made
            assert self._config is not None
            wanted = job_config.begun(self._config)
        asked = template = wanted.templates["master"]
        if ended:
            template = oom.grown(template, ended[-1], oom.memory_cap(wanted.settings, template))
        number = self._masters if self._memory.unmade is None else self._memory.unmade
        self._masters = max(self._masters, number + 1)
        name = names.object_name(self._name, "master", str(number))
        body = masters.pod(name, number, template, asked, _owner(self._about))
        self._after.append(Action("create", "Pod", name, body))
        self._memory = dataclasses.replace(
            self._memory,
            master=name,
            since=self._now,
            unmade=None,
            pulls=None,
            generation=self._generation,
        )

    # -- the status

    def _show(self) -> None:
        refused = self._memory.refused
        if refused and self._problem is None:
            self._problem = Problem("Refused", refused, fatal=False)
        is_late = self._lapsed or self._stop or ends.is_stopped(self._config)
        made = job_status.status(
            Situation(
                job=self._job,
                pods=self._pods,
                told=self._told,
                masters=self._masters,
                # a job whose first master never came has not begun, for whoever waits for it
                begun=self._config is not None and not (self._memory.unpulled and not self._told),
                problem=self._problem,
                note=self._note,
                late=ends.words(self._spec) if is_late else "",
                lapsed=self._lapsed,
            ),
            self._time,
        )
        if changed := job_status.difference(self._before, made):
            version = self._about["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "status": changed}
            self._actions.append(Action("patch", names.KIND, self._name, body, "status"))
            self._tell(made)
        self._tell_idle(made)
        self._look_in(job_status.unprepared_s(self._pods, self._time))
        self._look_in(self._until_s)

    def _tell_idle(self, made: Object) -> None:
        """Make an Event where no worker has been ready for long, once; look again until then."""
        is_idle = (made["phase"], _running(made)["reason"]) == ("Pending", job_status.NO_WORKER)
        self._memory, is_news, left_s = masters.idle(self._memory, is_idle, self._now)
        if is_news:
            self._event(job_status.NO_WORKER, f"{made['message']}, for {IDLE_S:.0f} s", well=False)
        self._look_in(left_s)

    def _look_in(self, left_s: float | None) -> None:
        if left_s is not None:
            self._again_s = left_s if self._again_s is None else min(self._again_s, left_s)

    def _tell(self, made: Object) -> None:
        """Make an Event of the EdlJob, which `kubectl describe` shows, where there is news."""
        if found := queued.news(self._before, made):
            self._event(*found, well=True)
        message, turned = made.get("message", ""), self._before.get("phase") != made["phase"]
        if queued.is_said(made, message):
            message = ""
        if not turned and message in ("", self._before.get("message")):
            return
        reason = self._problem.reason if self._problem else _running(made)["reason"]
        if reason == job_status.NO_WORKER:
            return  # told where it lasts
        well = made["phase"] != "Failed" and (turned or reason == "Checking") and not self._problem
        self._event(reason, message or made["phase"], well)

    def _event(self, reason: str, message: str, well: bool) -> None:
        about = (names.KIND, self._name, self._about.get("namespace", ""), self._about["uid"])
        event = objects.event(about, reason, message, well, self._time)
        self._actions.append(Action("create", "Event", event["metadata"]["name"], event))


def _owner(about: Object) -> Object:
    """Return the reference to an EdlJob, of this metadata, by what is its own."""
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "name": about["name"],
        "uid": about["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _running(status: Object) -> Object:
    """Return the condition Running of a status."""
    found: Object = next(each for each in status["conditions"] if each["type"] == "Running")
    return found


def _goes_on(pod: Object) -> bool:
    """Tell whether something of a pod runs, or is to, and it was not told to end."""
    return observe.takes_room(pod) and observe.deletion(pod) is None
