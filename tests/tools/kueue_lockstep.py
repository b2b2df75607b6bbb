"""A world of EdlJobs that Kueue itself holds, in step with one that the stand-in of Kueue holds.

Both are asked the same, turn by turn, with the same scheduler. After each turn what Kueue itself
says of each Workload must come to be what the stand-in says: the conditions that the scheduler
reads, their reasons, and what holds quota.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

from edl.common.times import rfc3339
from edl.k8s import names
from edl.scheduler import gate, workloads
from tools.kube_api import ApiError, path_of
from tools.kube_namespace import Namespace
from tools.kueue import Object, holds
from tools.kueue_itself import Installed, workload
from tools.kueue_world import World

READ = ("QuotaReserved", "Admitted", "Evicted", "Finished")  # by workloads.py
State = list[tuple[str, bool, bool, list[tuple[str, str, str]]]]
TURN_S = 30.0  # Kueue takes milliseconds; a controller that was killed, some 8 s


class Played(World):
    """A world that tells what its scheduler has done, and in which others ask for quota, too."""

    def __init__(self, jobs: Sequence[Object], quota: float) -> None:
        super().__init__(list(jobs), quota)
        self.done: list[str] = []

    def patch(self, name: str, patch: Object) -> None:
        super().patch(name, patch)
        spec = patch["spec"]
        if "suspend" in spec:
            self.done.append("suspend" if spec["suspend"] else "begin")
        if "worker" in spec:
            self.done.append(f"{spec['worker']['replicas']} workers")

    def do(self, step: gate.Step) -> None:
        super().do(step)
        if isinstance(step, gate.Make):
            self.done.append(f"make {_kind(step.body)}")
        elif isinstance(step, gate.Drop):
            self.done.append("drop base" if step.name.endswith("-base") else "drop piece")

    def other(self, name: str, cpu: float, priority: int) -> None:
        """Let somebody else ask for quota."""
        made = workload(name, self.kueue.queue, str(cpu), priority)
        made["metadata"] |= {
            "uid": f"uid-{name}",
            "namespace": "n",
            "creationTimestamp": rfc3339(self.now),
            "labels": {names.JOB_LABEL: "others"},
        }
        self.workloads[name] = made

    def leave(self, name: str) -> None:
        del self.workloads[name]

    def activate(self, name: str, is_active: bool) -> None:
        self.workloads[name]["spec"]["active"] = is_active

    def state(self) -> State:
        """Return what Kueue says of each Workload; pieces are alike."""
        return sorted(
            (
                _kind(each),
                each["spec"].get("active") is not False,
                holds(each),
                sorted(
                    (found["type"], found["status"], found["reason"])
                    for found in (each.get("status") or {}).get("conditions") or []
                    if found["type"] in READ
                ),
            )
            for each in self.workloads.values()
        )


class Itself(Played):
    """The same, whose Workloads are those of a namespace, and whose Kueue is Kueue itself."""

    def __init__(
        self, jobs: Sequence[Object], quota: float, kueue: Installed, here: Namespace
    ) -> None:
        super().__init__(jobs, quota)
        self._installed, self._here = kueue, here
        self._there: set[str] = set()
        self._active: dict[str, bool] = {}

    def come_to(self, wanted: Callable[[], State]) -> None:
        """Tell Kueue what has changed, and wait until it says what is wanted."""
        self._tell()
        target = wanted()

        def look(found: dict[str, Object]) -> bool:
            for name, each in self.workloads.items():
                each["status"] = copy.deepcopy(found.get(name, {}).get("status") or {})
            return found.keys() == self.workloads.keys() and self.state() == target

        try:
            self._here.wait("workloads", look, within_s=TURN_S)
        except AssertionError as error:
            raise AssertionError(f"Kueue itself: {self.state()}\nthe stand-in: {target}") from error

    def _tell(self) -> None:
        for name in self._there - self.workloads.keys():
            self._delete(name)
        for name, each in self.workloads.items():
            is_active = each["spec"].get("active") is not False
            if name not in self._there:
                about = {"name": name, "labels": each["metadata"].get("labels") or {}}
                body = {**each, "metadata": about, "status": {}}
                self._installed.make("workloads", body, self._here.name)
                self._active[name] = True
            if self._active[name] != is_active:
                change = {"spec": {"active": is_active}}
                self._installed.patch("workloads", name, change, self._here.name)
                self._active[name] = is_active
        self._there = set(self.workloads)

    def do(self, step: gate.Step) -> None:
        super().do(step)
        self._tell()  # one that goes and comes again within a round is another one

    def _delete(self, name: str) -> None:
        try:
            self._here.api.call("DELETE", path_of("workloads", self._here.name, name))
        except ApiError as error:
            if error.code != 404:
                raise


def play(stand_in: Played, itself: Itself, wish: Callable[[str], int], most: int = 20) -> list[str]:
    """Let both worlds come to rest, turn by turn alike; return what the scheduler did."""
    before = len(stand_in.done)
    for _ in range(most):
        had, was = len(stand_in.done), (stand_in.state(), copy.deepcopy(stand_in.pods))
        stand_in.round(wish)
        while stand_in.kueue.look(stand_in.workloads.values(), stand_in.now):
            stand_in.ask_kueue()
        itself.round(wish)
        itself.come_to(stand_in.state)
        for world in (stand_in, itself):
            for _ in range(8):
                world.move_pods()
        assert itself.done == stand_in.done
        if len(stand_in.done) == had and (stand_in.state(), stand_in.pods) == was:
            return stand_in.done[before:]
    raise AssertionError(f"no rest after {most} turns: {stand_in.done[before:]}")


def _kind(it: Object) -> str:
    if workloads.PIECE_LABEL not in (it["metadata"].get("labels") or {}):
        return str(it["metadata"]["name"])
    return "piece" if workloads.index_of(it) else "base"
