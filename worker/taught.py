"""What teachers answer, on its way into the loss: asked as the task is read, awaited in the step.

Every strategy passes labels on as they are and moves them to its device last of all, so that is
where the answer is awaited: whatever the student can compute before is computed meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..common import background
from ..common.clock import Clock
from ..common.errors import Unreachable
from ..common.identity import Identity, job_identity
from ..common.rpc import job_token
from ..common.settings import JobSettings
from ..common.teacher_address import registered_at, split_addresses
from ..data.views import Seen
from ..distill.alike import Alike
from ..distill.cached import Cached
from ..distill.following import Following
from ..distill.kserve.link import check_addresses, connect
from ..distill.link import Link, TeacherLink
from ..distill.question import Rules
from ..distill.teachers import Teachers
from ..master.client import MasterClient
from ..nn.device import to_device
from ..nn.weights import Labelled
from ..proto import master_pb2 as pb
from ..registry.identity import teachers_identity
from . import pulse

log = logging.getLogger("edl.worker")

_LOOK_S = 10.0  # how long the master may hold the question where the teachers are


class Lesson(Labelled):
    """The labels of a minibatch, and what its teachers answer."""

    def __init__(self, labels: Any, answer: Callable[[], Any] | None) -> None:
        """`answer`: waits for what is taught; None: that is known."""
        self.labels = labels
        self.teacher: Any = None
        self._answer = answer

    def to(self, device: torch.device) -> Lesson:
        """Wait for the answer, and move it and the labels to the device. Raises Untaught."""
        if self._answer is not None:
            self.teacher, self._answer = self._answer(), None
        moved = Lesson(to_device(self.labels, device), None)
        moved.teacher = to_device(self.teacher, device)
        return moved


class School:
    """The teachers of a worker: who they are, as the master tells, and what they are asked."""

    def __init__(self, master: MasterClient, settings: JobSettings, clock: Clock) -> None:
        self._master = master
        own, others = job_identity(job_token()), teachers_identity()
        fixed = split_addresses(settings.teachers)
        check_addresses(fixed)
        self._cached: Cached | None = None
        self._alike: Alike | Cached = Alike(agree=self._agree)
        if settings.teacher_cache:
            self._alike = self._cached = Cached(
                Path(settings.teacher_cache),
                job_token(),
                alone=not settings.most_teachers and not fixed,
                agree=self._agree,
                clock=clock,
                on_note=self._note,
            )
        follows = any(registered_at(each) for each in fixed)
        count = max(1, settings.most_teachers + len(fixed))
        rules = Rules(
            wait_s=settings.teacher_wait_s,
            without=settings.without_teachers,
            timeout_s=settings.teacher_timeout_s,
            window=0 if follows else 2 * count + 2,
        )
        self.teachers = Teachers(
            lambda address: self._link(address, own if address in self._own else others),
            rules,
            clock=clock,
            on_wait=pulse.excuse,
            on_note=self._note,
        )
        self._clock, self._without = clock, settings.without_teachers
        self._own: frozenset[str] = frozenset()  # addresses of the job's own
        self._closed = False
        self._looked, self._waited_s, self._records = clock.now(), 0.0, 0
        self._following = Following(self.teachers, fixed, others, clock=clock, on_note=self._note)
        if settings.most_teachers:
            background.begin("find-teachers", self._find)

    def ask(self, features: Any, labels: Any, seen: Seen) -> Lesson:
        """Ask about a minibatch, and return its labels with what will be taught."""
        if self._cached is not None:
            asked = self._cached.ask(self.teachers, features, seen)
            answer = partial(self._cached.answer, self.teachers, asked, without=self._without)
            return Lesson(labels, answer)
        question = self.teachers.ask(features)
        return Lesson(labels, partial(self.teachers.answer, question, len(seen.records)))

    def scalars(self) -> dict[str, float]:
        """Return what the heartbeat tells: records; their rate and the waits since the last one."""
        now, waited_s = self._clock.now(), self.teachers.waited_s
        records = self.teachers.taught + self.teachers.untaught
        passed = max(now - self._looked, 1e-6)
        share = min(1.0, (waited_s - self._waited_s) / passed)
        rate = (records - self._records) / passed
        self._looked, self._waited_s, self._records = now, waited_s, records
        return {
            "taught": float(self.teachers.taught),
            "cached": float(self._cached.cached if self._cached is not None else 0),
            "untaught": float(self.teachers.untaught),
            "teacher_wait_share": share,
            "waited_teachers_s": waited_s,
            "taught_per_s": rate,
        }

    def close(self) -> None:
        self._closed = True
        self._following.close()
        self.teachers.close()
        if self._cached is not None:
            self._cached.close()

    def _link(self, address: str, identity: Identity) -> Link:
        link = connect(address, identity)
        return self._alike.link(address, link) if isinstance(link, TeacherLink) else link

    def _agree(self, address: str, fingerprint: str) -> str:
        """Return the fingerprint that all teachers of the job have, as its master knows it."""
        return self._master.get_teachers(0, 0.0, met=(address, fingerprint)).fingerprint

    def _find(self) -> None:
        """Follow the master's list of teachers."""
        known = 0
        while not self._closed:
            try:
                reply = self._master.get_teachers(known, _LOOK_S)
            except Unreachable:
                return  # the heartbeat meets the same silence, and ends the worker
            if reply.version != known:
                known = reply.version
                self._own = frozenset(reply.addresses)
                self._following.heard("master", reply.addresses)

    def _note(self, text: str) -> None:
        """Tell the user, without waiting: the master may be away."""
        log.warning("%s", text)
        request = pb.HeartbeatRequest(notes=[text])
        background.begin("note", lambda: self._master.heartbeat_with(request))


def taught_loss(loss: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the loss of outputs and a lesson, by one of outputs, labels and the answer."""

    def of_lesson(outputs: Any, lesson: Any) -> Any:
        if isinstance(lesson, Lesson):
            return loss(outputs, lesson.labels, lesson.teacher)
        return loss(outputs, lesson, None)

    return of_lesson
