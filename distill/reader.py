"""A reader for scripts of one's own: batches as they come, with what teachers say of them."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..common.errors import EdlError, UsageError
from ..common.teacher_address import Registered, Served, parse, split_addresses
from ..registry.identity import teachers_identity
from .alike import Alike
from .cached import Asked, Cached
from .following import Following
from .kserve.link import check_addresses, connect
from .link import Link, TeacherLink
from .question import Question, Rules
from .roll_call import call_roll
from .teachers import Teachers

log = logging.getLogger(__name__)

Source = Callable[[], Iterable[Any]]
Named = Mapping[str, Any]


class DistillReader:
    """Batches in their order, each with the teachers' answers behind its own fields.

        reader = DistillReader(["image", "label"], ["logits"])
        reader.set_fixed_teacher("10.0.0.5:7000,10.0.0.6:7000")
        for image, label, logits in reader.wrap(loader): ...

    `ins` names the fields of what comes, and `feeds` those that teachers are asked about: by
    default the first one. `predicts` names the answers, in order; of a lone tensor the name is
    free. Fields go by their places; of dicts, by their names, beside which answers and whatever
    else is there stand. The rules are those of a job (docs/distillation.md). One iteration at a
    time.
    """

    def __init__(
        self,
        ins: Sequence[str],
        predicts: Sequence[str] = ("logits",),
        *,
        feeds: Sequence[str] | None = None,
        rules: Rules | None = None,
        cache: str | Path = "",
        on_note: Callable[[str], None] = log.warning,
    ) -> None:
        """Ask nobody yet.

        `cache`: a folder that keeps what is answered, as --teacher_cache does, by the features;
        without a teacher that is set, it alone teaches. `on_note` is called with what a user should
        know. Raises UsageError for a feed that is no field.
        """
        self._ins, self._predicts = list(ins), list(predicts)
        self._feeds = list(ins[:1] if feeds is None else feeds)
        if unknown := [each for each in self._feeds if each not in self._ins]:
            raise UsageError(f"DistillReader: feeds has {unknown[0]!r}, and ins {self._ins}")
        self._rules, self._on_note = rules or Rules(), on_note
        self._cache, self._teacher = Path(cache) if cache else None, ""
        self._batch_size = 1
        self._addresses: list[str] = []
        self._most = 0  # of those that have registered, at a time; 0: all
        self._met: list[str] = []  # addresses of which the roll was called
        self._source: tuple[str, Source] | None = None

    # -- what Paddle EDL's readers have

    def set_teacher_batch_size(self, teacher_batch_size: int = 1) -> Self:
        """Ask about so many samples at once, where they come one by one."""
        if teacher_batch_size < 1:
            raise UsageError(
                f"DistillReader: a teacher batch size of {teacher_batch_size}: give 1 or more"
            )
        self._batch_size = teacher_batch_size
        return self

    def set_fixed_teacher(self, teachers: str | Sequence[str]) -> Self:
        """Ask these teachers, several with commas between or as a list.

        HOST:PORT, kserve+http://HOST:PORT/MODEL and its like (docs/distillation.md), or those of
        a registry: edl://HOST:PORT/NAME. Raises UsageError for what is none of these.
        """
        self._set(_listed(teachers))
        return self

    def set_dynamic_teacher(
        self,
        discovery_servers: str | Sequence[str],
        teacher_service_name: str,
        require_max_teacher: int = 0,
    ) -> Self:
        """Ask whoever has registered under a name, as they come and go.

        `discovery_servers`: HOST:PORT of an `edl registry`, or of a job's master and the name
        `teachers`; several with commas between or as a list, whose teachers are all asked.
        `require_max_teacher`: how many of them at a time; 0: all. Raises UsageError for what is
        none, and for no name.
        """
        registries = _listed(discovery_servers)
        if not registries:
            raise UsageError("DistillReader: no registry: give HOST:PORT of an `edl registry`")
        self.set_require_max_teacher(require_max_teacher)
        self._set([f"edl://{each}/{teacher_service_name}" for each in registries])
        return self

    def set_require_max_teacher(self, require_max_teacher: int) -> Self:
        """Ask at most so many of those that have registered; 0: all. Fixed ones are all asked."""
        if require_max_teacher < 0:
            raise UsageError(
                f"DistillReader: require_max_teacher {require_max_teacher}: give 1 or more; 0: all"
            )
        self._most = require_max_teacher
        return self

    def _set(self, addresses: list[str]) -> None:
        check_addresses(addresses)
        self._addresses = addresses
        if self._cache is None:  # which is one teacher's
            self._teacher = ""

    def set_sample_generator(self, source: Source) -> Self:
        """Read samples (fields in a tuple or a dict) that `source()` yields, and yield each."""
        self._source = "sample", source
        return self

    def set_sample_list_generator(self, source: Source) -> Self:
        """Read lists of samples; they come out as lists of the same length."""
        self._source = "list", source
        return self

    def set_batch_generator(self, source: Source) -> Self:
        """Read batches: tuples or dicts of arrays with a row for each sample."""
        self._source = "batch", source
        return self

    def print_config(self) -> None:
        """Print what this reader was told, a line for each."""
        registered = [each for each in map(parse, self._addresses) if isinstance(each, Registered)]
        told = {
            "ins": self._ins,
            "predicts": self._predicts,
            "feeds": self._feeds,
            "teacher_batch_size": self._batch_size,
            "distill_mode": "discover" if registered else "fixed" if self._addresses else None,
            "teachers": self._addresses,
            "require_max_teacher": self._most or "all",
            "discovery_servers": [each.registry for each in registered],
            "teacher_service_name": registered[0].name if registered else None,
            "reader_type": self._source[0] if self._source else None,
            "cache": self._cache,
        }
        lines = [f"{name}: {value}" for name, value in told.items()]
        begin = "------ DistillReader Configuration Arguments ------"
        print("\n".join([begin, *lines, "-" * len(begin)]))

    def __call__(self) -> Iterator[Any]:
        """Yield what the generator yields, with the answers. Raises UsageError, Untaught."""
        if self._source is None:
            raise UsageError("DistillReader: nothing to read: call one of its set_..._generator")
        kind, source = self._source
        if kind == "batch":
            yield from self._taught(source(), self._named, self._with_arrays)
        elif kind == "list":
            yield from self._taught(source(), self._columns, self._with_rows)
        else:
            lists = _lists(source(), self._batch_size)
            for rows in self._taught(lists, self._columns, self._with_rows):
                yield from rows

    # -- any loader

    def wrap(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a DataLoader, or any iterable, with answers.

        Tuples or lists of fields come out as tuples with the answers behind them, dicts as dicts
        with the answers under their names. Raises UsageError, Untaught.
        """
        yield from self._taught(loader, self._named, self._with_arrays)

    def _taught(
        self,
        batches: Iterable[Any],
        fields_of: Callable[[Any], Named],
        put: Callable[[Any, list[Tensor | None]], Any],
    ) -> Iterator[Any]:
        asking = self._asking()
        asked: deque[tuple[Any, Any]] = deque()
        try:
            for batch in batches:
                asked.append((batch, asking.ask(self._fed(fields_of(batch)))))
                if len(asked) > asking.teachers.ahead:
                    yield self._answered(asking, *asked.popleft(), put)
            while asked:
                yield self._answered(asking, *asked.popleft(), put)
        finally:
            self._teacher = asking.close() or self._teacher

    def _asking(self) -> Asking:
        """Return a way to ask all who were set. Raises UsageError."""
        if not self._addresses and self._cache is None:
            raise UsageError(
                "DistillReader: no teachers: call set_fixed_teacher or set_dynamic_teacher"
            )
        for each in self._addresses if self._cache is not None else ():
            if isinstance(parse(each), Served):
                raise UsageError(
                    "DistillReader: cache keeps answers by the teacher's fingerprint, which "
                    f"{each} does not tell: leave out one of them"
                )
        self._call_roll()
        is_dynamic = any(isinstance(parse(each), Registered) for each in self._addresses)
        most = self._most if is_dynamic else 0
        rules = replace(self._rules, most=most or self._rules.most)
        return Asking(self._addresses, rules, self._cache, self._teacher, self._on_note)

    def _call_roll(self) -> None:
        """Check once that those who are there are one teacher, and know us. Raises UsageError."""
        if self._met == self._addresses:
            return
        try:
            call_roll(self._addresses, teachers_identity())
        except UsageError:
            raise
        except EdlError as error:  # of a registry: whoever follows it says so
            log.info("roll -> not called error=%r", str(error))
        self._met = self._addresses

    # -- batches and samples

    def _named(self, batch: Any) -> Named:
        """Return the fields of a batch, or of a sample, by their names. Raises UsageError."""
        if isinstance(batch, Mapping):
            if lacking := [name for name in self._ins if name not in batch]:
                raise UsageError(
                    f"DistillReader: a batch has no {lacking[0]!r} of ins: its fields are "
                    f"{', '.join(map(str, batch))}"
                )
            if twice := [name for name in self._predicts if name in batch]:
                raise UsageError(
                    f"DistillReader: a batch has a field {twice[0]!r}, as predicts has: an answer "
                    "would replace it"
                )
            return batch
        fields = _fields(batch)
        if isinstance(fields, str | bytes) or not isinstance(fields, Sequence):
            raise UsageError(
                f"DistillReader: a batch is a {type(batch).__name__}: give tuples or lists of "
                f"fields, or dicts by the names of ins: {', '.join(self._ins)}"
            )
        if len(fields) != len(self._ins):
            raise UsageError(
                f"DistillReader: a batch has {len(fields)} fields, and ins {len(self._ins)}: "
                f"{', '.join(self._ins)}"
            )
        return dict(zip(self._ins, fields, strict=True))

    def _columns(self, samples: Sequence[Any]) -> Named:
        """Return the fields of samples that teachers are asked about, each stacked."""
        rows = [self._named(sample) for sample in samples]
        columns = {name: [row[name] for row in rows] for name in self._feeds}
        return {
            name: torch.stack(column) if isinstance(column[0], Tensor) else np.stack(column)
            for name, column in columns.items()
        }

    def _fed(self, fields: Named) -> Any:
        """Return what teachers are asked about."""
        fed = {name: fields[name] for name in self._feeds}
        return fed if len(fed) != 1 else fed[self._feeds[0]]

    def _with_arrays(self, batch: Any, answers: list[Tensor | None]) -> Any:
        """Return a batch's fields and the answers; arrays where the fields are such."""
        if any(isinstance(field, np.ndarray) for field in self._named(batch).values()):
            return self._joined(batch, [None if a is None else a.numpy() for a in answers])
        return self._joined(batch, answers)

    def _with_rows(self, samples: Sequence[Any], answers: list[Tensor | None]) -> list[Any]:
        """Return samples with their rows of the answers."""
        columns = [[None] * len(samples) if a is None else a.numpy() for a in answers]
        return [
            self._joined(sample, [column[n] for column in columns])
            for n, sample in enumerate(samples)
        ]

    def _joined(self, batch: Any, answers: Sequence[Any]) -> Any:
        """Return fields with the answers behind them, or in a dict beside them."""
        if isinstance(batch, Mapping):
            return {**batch, **dict(zip(self._predicts, answers, strict=True))}
        return (*_fields(batch), *answers)

    def _answered(
        self,
        asking: Asking,
        batch: Any,
        question: Any,
        put: Callable[[Any, list[Tensor | None]], Any],
    ) -> Any:
        answer = asking.answer(question)
        if answer is None:
            return put(batch, [None] * len(self._predicts))
        if isinstance(answer, Tensor):
            answer = {self._predicts[0]: answer} if len(self._predicts) == 1 else {"": answer}
        if not isinstance(answer, dict) or set(self._predicts) - set(answer):
            told = ", ".join(answer) if isinstance(answer, dict) else f"{len(answer)} unnamed"
            raise UsageError(
                f"DistillReader: the teachers answer {told or 'one tensor'}, and predicts asks for "
                f"{', '.join(self._predicts)}"
            )
        return put(batch, [answer[name] for name in self._predicts])


class Asking:
    """One iteration's teachers, with the cache before them, if there is one, until `close`."""

    def __init__(
        self,
        addresses: Sequence[str],
        rules: Rules,
        cache: Path | None,
        teacher: str,
        on_note: Callable[[str], None],
    ) -> None:
        """Begin to find teachers.

        `cache`: its folder. `teacher`: the fingerprint, where it is known. Raises UsageError.
        """
        identity = teachers_identity()
        self._cached: Cached | None = None
        self._alike: Alike | Cached = Alike(teacher, whose="the one of before")
        self._without = rules.without

        def link(address: str) -> Link:
            made = connect(address, identity)
            return self._alike.link(address, made) if isinstance(made, TeacherLink) else made

        with contextlib.ExitStack() as undo:
            if cache is not None:
                self._alike = self._cached = Cached(
                    cache, None, alone=not addresses, teacher=teacher, on_note=on_note
                )
                undo.callback(self._cached.close)
            self.teachers = Teachers(link, rules, on_note=on_note)
            undo.callback(self.teachers.close)
            following = Following(self.teachers, addresses, identity, on_note=on_note)
            undo.callback(following.close)
            self._ends = undo.pop_all()

    def ask(self, features: Any) -> Question | Asked:
        """Ask about a batch; return at once."""
        if self._cached is None:
            return self.teachers.ask(features)
        return self._cached.ask(self.teachers, features, None)

    def answer(self, question: Question | Asked) -> Any:
        """Return what is taught; None: the rules say to go on without. Raises Untaught."""
        if isinstance(question, Question):
            return self.teachers.answer(question, question.rows)
        assert self._cached is not None
        return self._cached.answer(self.teachers, question, without=self._without)

    def close(self) -> str:
        """Ask nobody any more, write what is to be kept; return the teacher's fingerprint or ""."""
        self._ends.close()
        return self._alike.teacher


def _listed(told: str | Sequence[str]) -> list[str]:
    """Return addresses that are given as a text with commas, or as several of such."""
    return split_addresses(told if isinstance(told, str) else ",".join(told))


def _fields(batch: Any) -> Any:
    """Return the fields of a batch that is no dict: a lone array is one of one field."""
    return [batch] if isinstance(batch, Tensor | np.ndarray) else batch


def _lists(samples: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rows: list[Any] = []
    for sample in samples:
        rows.append(sample)
        if len(rows) == size:
            yield rows
            rows = []
    if rows:
        yield rows
