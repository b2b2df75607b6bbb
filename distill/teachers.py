"""A student's teachers: what is asked ahead of its use, whom, and what to do without an answer.

`ask` returns at once; a few threads carry requests to teachers, choose whom (balance.py), ask again
where one does not answer, and ask a second one where the first is late: the first answer counts. A
teacher's answer is a feature of its record and no part of the books, so all of that is free of
consequences. What nobody waits for any more is not asked: requests are held by their `Question`.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from ..common import background
from ..common.clock import Clock, MonotonicClock
from ..common.errors import EdlError, PeerError, Unreachable
from . import tree
from .balance import MOST_STRIKES, Balance
from .frames import Part
from .link import Answer, Busy, Link, Refused, Stranger
from .question import Question, Rules

log = logging.getLogger(__name__)

_LOOK_S = 5.0  # how often whoever waits says so
_LEAST_WINDOW = 8
_LEAST_REFUSALS = 3  # of one question, by all that are there, before it is given up
_THREADS, _MOST_THREADS = 8, 64  # requests under way


class Untaught(EdlError):
    """A question has no answer, and the job may not go on without it."""


class Teachers:
    """The teachers of one student. Any thread may call."""

    def __init__(
        self,
        connect: Callable[[str], Link],
        rules: Rules,
        *,
        clock: Clock | None = None,
        rng: Random | None = None,
        on_wait: Callable[[], None] = lambda: None,
        on_note: Callable[[str], None] = log.warning,
    ) -> None:
        """Ask nobody yet.

        `connect(address)` makes a way to a teacher. `on_wait` is called now and then by whoever
        waits for an answer; `on_note` with what a user should know.
        """
        self._connect, self._rules = connect, rules
        self._clock = clock or MonotonicClock()
        self._on_wait, self._on_note = on_wait, on_note
        self._rng = rng or Random()
        self._balance = Balance(self._rng)
        self._links: dict[str, Link] = {}
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # for those who carry
        self._over = threading.Condition(self._lock)  # for whoever waits for an answer
        self._waiting: deque[weakref.ref[Question]] = deque()
        self._under_way: weakref.WeakSet[Question] = weakref.WeakSet()
        self._largest_nbytes = 1
        self._closed = False
        self._had_one = False  # a teacher, ever
        self._told_away = False  # that nobody is there, since there was somebody
        self._is_silent = False  # nobody answers: hard labels do not wait until somebody does
        self._told_refused = False
        self._listed: list[str] = []
        self._out: dict[str, str] = {}  # taken out, and why
        self._last = ""  # error of one that did not answer
        self._waited_s = 0.0  # by the student, for answers
        self._waits: list[float] = []  # of now: since when
        self.missing = ""  # why there is none, as those have said who should tell of some
        self._hopeless = ""  # why there never will be
        self._carriers = 0
        self.untaught = 0  # records that went on without
        self.taught = 0  # records
        self._staff(max(_THREADS, rules.window // 2))

    # -- who they are

    def update(self, addresses: Sequence[str]) -> None:
        """Ask these teachers from now on, and no others."""
        with self._lock:
            self._listed = list(addresses)
            gone = self._choose()
        for link in gone:
            link.close()

    def _choose(self) -> list[Link]:
        """Ask those who are listed, or so many as the rules say; return the links of all others."""
        names = [each for each in self._listed if each not in self._out]
        if 0 < self._rules.most < len(names):
            known = self._balance.teachers
            kept = [each for each in names if each in known and known[each].misses < MOST_STRIKES]
            new = [each for each in names if each not in known]
            tried = [each for each in names if each in known and each not in kept]
            names = [*kept, *self._rng.sample(new, len(new)), *tried][: self._rules.most]
        self._balance.update(names)
        self._had_one = self._had_one or bool(names)
        self._told_away = self._told_away and not names
        self._staff(len(names) + 1)
        self._work.notify_all()
        self._over.notify_all()
        return [self._links.pop(name) for name in [*self._links] if name not in names]

    def give_up(self, why: str) -> None:
        """Let whoever waits for an answer that is not there be told why none will come."""
        with self._lock:
            self._hopeless = why
            self._over.notify_all()

    def _staff(self, number: int) -> None:
        """Have so many threads that carry, more than there are teachers."""
        while self._carriers < min(number, _MOST_THREADS) and not self._closed:
            background.begin(f"teachers-{self._carriers}", self._carry)
            self._carriers += 1

    @property
    def there(self) -> list[str]:
        """The teachers that may be asked."""
        with self._lock:
            return self._balance.there

    @property
    def waited_s(self) -> float:
        """The seconds for which the student has waited for answers, up to now."""
        with self._lock:
            now = self._clock.now()
            return self._waited_s + sum(now - began for began in self._waits)

    @property
    def ahead(self) -> int:
        """How many questions may be asked ahead, of the largest so far."""
        fit = self._rules.window_nbytes // self._largest_nbytes
        window = self._rules.window or max(_LEAST_WINDOW, 2 * len(self.there) + 2)
        return max(1, min(window, fit))

    def close(self) -> None:
        """Ask nothing more; whoever waits is told."""
        with self._lock:
            self._closed = True
            links = list(self._links.values())
            self._links.clear()
            self._work.notify_all()
            self._over.notify_all()
        for link in links:
            link.close()

    # -- the student

    def ask(self, features: Any) -> Question:
        """Ask about a minibatch; return at once.

        Raises TypeError where the features are no tensors and arrays.
        """
        return self.ask_parts(tree.parts_of(features, "feed's features"))

    def ask_parts(self, parts: list[Part]) -> Question:
        """Ask about these arrays; return at once."""
        rows = tree.rows_of(parts)
        question = Question(parts, 1 if rows is None else rows, rows is None)
        with self._lock:
            self._largest_nbytes = max(self._largest_nbytes, question.nbytes)
            self._waiting.append(weakref.ref(question))
            self._work.notify()
        return question

    def answer(self, question: Question, records: int) -> Any:
        """Return what was taught of these records; None: the rules say to go on without.

        Raises Untaught.
        """
        began = self._clock.now()
        with self._lock:
            self._waits.append(began)
            try:
                self._await(question, began)
            finally:
                self._waits.remove(began)
                self._waited_s += self._clock.now() - began
            if question.answer is not None:
                self.taught += records
                return tree.values_of(question.answer)
            if self._rules.without == "hard_labels":
                self.untaught += records
                return None
            raise Untaught(question.error or self._why())

    def _be_silent(self, waited: bool) -> None:
        """Wait for nobody from now on, if hard labels are the rule and a whole wait was in vain."""
        if waited and not self._is_silent and self._rules.without == "hard_labels":
            self._is_silent = True
            what = "has answered" if self._balance.there else "has come"
            last = f" The last that was tried: {self._last}." if self._last else ""
            self._on_note(
                f"no teacher {what} for {self._rules.wait_s:g} s (--teacher_wait_s): training goes "
                f"on with hard labels, and waits no more until one answers.{last}"
            )

    def _await(self, question: Question, began: float) -> None:
        """Wait until a question is over, or for no longer by the rules. Raises Untaught."""
        while not question.is_over:
            left_s = began + self._rules.wait_s - self._clock.now()
            is_away = self._had_one and not self._balance.there
            if self._closed or self._hopeless:
                raise Untaught(self._hopeless or "the teachers were given up")
            if left_s <= 0 or (is_away and self._rules.without != "wait") or self._is_silent:
                self._be_silent(left_s <= 0)
                return
            self._over.wait(min(left_s, _LOOK_S))
            self._on_wait()
            waits_on = self._rules.without == "wait" or not self._had_one
            is_told = self._told_away or self.missing or self._hopeless
            if waits_on and not (is_told or self._balance.there or question.is_over):
                self._told_away = True
                left_s = began + self._rules.wait_s - self._clock.now()
                self._on_note(f"the student waits for up to {max(left_s, 0):.0f} s: {self._why()}")

    def _why(self) -> str:
        """Return why there is no answer, and what to do."""
        if self._balance.there:
            last = f" The last that was tried: {self._last}." if self._last else ""
            return (
                f"no teacher has answered for {self._rules.wait_s:g} s (--teacher_wait_s): see "
                f"their logs, or start more of them (--num_teachers).{last}"
            )
        out = ""
        if self._out:
            name, why = [*self._out.items()][-1]
            out = f", and {len(self._out)} answered wrongly (the last, at {name}: {why})"
        if self.missing:
            out = f", {self.missing}{out}"
        how = "`edl teach --registry`" if self.missing else "`edl scale --num_teachers`"
        return (
            f"no teacher is there{out}: start some ({how}), or let the job go on with hard labels "
            "(--without_teachers hard_labels)"
        )

    # -- the threads that carry

    def _carry(self) -> None:
        while (chosen := self._next()) is not None:
            question, name = chosen
            began = self._clock.now()
            error: EdlError | None = None
            reply: Answer | None = None
            try:
                link = self._link(name)
                timeout_s = self._rules.timeout_s
                reply = link.teach(question.parts, question.rows, timeout_s, question.whole)
            except EdlError as failure:
                error = failure
            except OSError as failure:
                error = Unreachable(f"the teacher at {name}: {failure}")
            with self._lock:
                self._ended(question, name, began, reply, error)
            del question, chosen  # nobody may wait for it any more

    def _link(self, name: str) -> Link:
        with self._lock:
            link = self._links.get(name)
            if link is None:
                link = self._links[name] = self._connect(name)
            return link

    def _next(self) -> tuple[Question, str] | None:
        """Wait for something to ask, and for somebody to ask; None: this is closed."""
        with self._work:
            while not self._closed:
                chosen, left_s = self._choice(self._clock.now())
                if chosen is not None:
                    if len(self._balance.there) > 1:
                        self._work.notify()  # somebody is to look whether it is late
                    return chosen
                self._work.wait(left_s)
        return None

    def _choice(self, now: float) -> tuple[tuple[Question, str] | None, float | None]:
        """Return what to ask whom now, and else in how many seconds there may be something."""
        question = self._first_waiting()
        late_s = self._balance.late_after()
        wake: list[float] = []
        there = self._balance.there
        if question is not None:
            but = question.passes(there)
            name = self._balance.choose(now, question.rows, but)
            if name is not None:
                self._waiting.popleft()
                return self._sent(question, name, now), None
            if (free_at := self._balance.next_free(but)) is not None:
                wake.append(free_at)
        elif late_s is not None:
            for each in [q for q in self._under_way if len(q.asked) == 1 and not q.is_over]:
                (since,) = each.asked.values()
                but = each.passes(there)
                name = self._balance.choose(now, each.rows, but)
                if name is not None and since + late_s <= now:
                    return self._sent(each, name, now), None
                if (free_at := self._balance.next_free(but)) is not None:
                    wake.append(max(since + late_s, free_at))
        return None, min((each - now for each in wake if each > now), default=None)

    def _first_waiting(self) -> Question | None:
        while self._waiting:
            question = self._waiting[0]()
            if question is not None and not question.is_over:
                return question
            self._waiting.popleft()
        return None

    def _sent(self, question: Question, name: str, now: float) -> tuple[Question, str]:
        question.asked[name] = now
        self._under_way.add(question)
        self._balance.sent(name, question.rows)
        return question, name

    def _ended(
        self,
        question: Question,
        name: str,
        began: float,
        reply: Answer | None,
        error: EdlError | None,
    ) -> None:
        """Note what became of one request, and have the question asked again where need be."""
        now = self._clock.now()
        question.asked.pop(name, None)
        wrong = ""
        if reply is not None:
            wrong = tree.fault_of(reply.parts, None if question.whole else question.rows)
            if not wrong:
                self._balance.answered(
                    name, question.rows, now - began, reply.queued, float(reply.rate)
                )
                question.answer = question.answer or reply.parts
                if self._is_silent:
                    self._is_silent = False
                    self._on_note(f"the teacher at {name} answers: it is waited for again")
                self._under_way.discard(question)
                self._over.notify_all()
                return
        elif isinstance(error, Refused):
            wrong = str(error)
            question.refusals += 1
        elif isinstance(error, Stranger):
            wrong = str(error)
        elif not isinstance(error, Busy | PeerError):
            question.error = str(error)
        if wrong:
            self._was_wrong(question, name, wrong, error)
        else:
            self._balance.missed(name, question.rows, now)
            if not isinstance(error, Busy):
                self._last = f"{name}: {error}"
                log.info("teacher=%s -> no answer error=%r", name, str(error))
        if self._rules.most:
            for link in self._choose():
                link.close()
        self._over.notify_all()  # there may be no answer, or nobody to give one
        if not question.is_over and not question.asked:
            self._under_way.discard(question)
            self._waiting.appendleft(weakref.ref(question))
            self._work.notify()

    def _was_wrong(self, question: Question, name: str, wrong: str, error: EdlError | None) -> None:
        """Note a wrong answer, or a refusal; who gives too many is asked no more."""
        stranger = error if isinstance(error, Stranger) else None
        question.wrong_by.add(name)
        if self._balance.wrong(name, question.rows, 1 if stranger else MOST_STRIKES):
            self._out[name] = wrong
            if stranger is None or not stranger.is_told:
                self._on_note(f"the teacher at {name} is asked no more: {wrong}")
        all_were = question.wrong_by.issuperset(self._balance.there)
        if question.error or not all_were or question.refusals < _LEAST_REFUSALS:
            return
        question.error = f"the teachers refuse it: the last, at {name}, says: {wrong}"
        goes_on = self._rules.without == "hard_labels" and self._balance.there
        if goes_on and not self._told_refused:
            self._told_refused = True
            self._on_note(f"a minibatch goes on with hard labels: {question.error}")
