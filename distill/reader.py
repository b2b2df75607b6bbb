"""A reader for scripts of one's own: batches as they come, with what teachers say of them."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.errors import UsageError
from ..common.teacher_address import Served, parse, split_addresses
from ..registry.identity import teachers_identity
from .cached import Asked, Cached
from .following import Following
from .kserve.link import check_addresses, connect
from .link import TeacherLink
from .teachers import Link, Question, Rules, Teachers

log = logging.getLogger(__name__)

Source = Callable[[], Iterable[Any]]


class DistillReader:
    """Batches in their order, each with the teachers' answers behind its own fields.

        reader = DistillReader(["image", "label"], ["logits"])
        reader.set_fixed_teacher("10.0.0.5:7000,10.0.0.6:7000")
        for image, label, logits in reader.wrap(loader): ...

    `ins` names the fields of what comes, and `feeds` those that teachers are asked about: by
    default the first one. `predicts` names the answers, in order; of a lone tensor the name is
    free. The rules are those of a job (docs/distillation.md). One iteration at a time.
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
        self._source: tuple[str, Source] | None = None

    # -- what Paddle EDL's readers have

    def set_teacher_batch_size(self, size: int) -> None:
        """Ask about so many samples at once, where they come one by one."""
        if size < 1:
            raise UsageError(f"DistillReader: a teacher batch size of {size}: give 1 or more")
        self._batch_size = size

    def set_fixed_teacher(self, teachers: str | Sequence[str]) -> None:
        """Ask these teachers, several with commas between or as a list.

        HOST:PORT, kserve+http://HOST:PORT/MODEL and its like (docs/distillation.md), or those of
        a registry: edl://HOST:PORT/NAME. Raises UsageError for what is none of these.
        """
        given = teachers if isinstance(teachers, str) else ",".join(teachers)
        self._addresses = split_addresses(given)
        check_addresses(self._addresses)

    def set_dynamic_teacher(self, registry: str, name: str) -> None:
        """Ask whoever has registered under a name, as they come and go.

        `registry`: HOST:PORT of an `edl registry`; or of a job's master, and the name `teachers`.
        Raises UsageError for what is none, and for no name.
        """
        self.set_fixed_teacher([f"edl://{registry}/{name}"])

    def set_sample_generator(self, source: Source) -> None:
        """Read samples (tuples of fields) from what `source()` yields; they come out one by one."""
        self._source = "sample", source

    def set_sample_list_generator(self, source: Source) -> None:
        """Read lists of samples; they come out as lists of the same length."""
        self._source = "list", source

    def set_batch_generator(self, source: Source) -> None:
        """Read batches: tuples of arrays with a row for each sample."""
        self._source = "batch", source

    def __call__(self) -> Iterator[Any]:
        """Yield what the generator yields, with the answers. Raises UsageError, Untaught."""
        if self._source is None:
            raise UsageError("DistillReader: nothing to read: call one of its set_..._generator")
        kind, source = self._source
        if kind == "batch":
            yield from self._taught(source(), lambda batch: batch, _with_arrays)
        elif kind == "list":
            yield from self._taught(source(), _columns, _with_rows)
        else:
            lists = _lists(source(), self._batch_size)
            for rows in self._taught(lists, _columns, _with_rows):
                yield from rows

    # -- any loader

    def wrap(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a DataLoader, or any iterable of tuples of tensors, with answers."""
        yield from self._taught(loader, lambda batch: batch, _with_arrays)

    def _taught(
        self,
        batches: Iterable[Any],
        fields_of: Callable[[Any], Sequence[Any]],
        put: Callable[[Any, list[Tensor]], Any],
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
        cache = (self._cache, self._teacher) if self._cache is not None else None
        return Asking(self._addresses, self._rules, cache, self._on_note)

    def _fed(self, fields: Sequence[Any]) -> Any:
        """Return what teachers are asked about. Raises UsageError."""
        if len(fields) != len(self._ins):
            raise UsageError(
                f"DistillReader: a batch has {len(fields)} fields, and ins {len(self._ins)}: "
                f"{', '.join(self._ins)}"
            )
        fed = [fields[self._ins.index(name)] for name in self._feeds]
        return fed[0] if len(fed) == 1 else dict(zip(self._feeds, fed, strict=True))

    def _answered(
        self,
        asking: Asking,
        batch: Any,
        question: Any,
        put: Callable[[Any, list[Tensor]], Any],
    ) -> Any:
        answer = asking.answer(question)
        if answer is None:
            return put(batch, [None] * len(self._predicts))  # type: ignore[list-item]
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
        cache: tuple[Path, str] | None,
        on_note: Callable[[str], None],
    ) -> None:
        """Begin to find teachers.

        `cache`: its folder, and the fingerprint of its teacher, where that is known. Raises
        UsageError.
        """
        identity = teachers_identity()
        self._cached: Cached | None = None
        self._without = rules.without

        def link(address: str) -> Link:
            made = connect(address, identity)
            if self._cached is None or not isinstance(made, TeacherLink):
                return made
            return self._cached.link(address, made)

        with contextlib.ExitStack() as undo:
            if cache is not None:
                folder, teacher = cache
                self._cached = Cached(
                    folder, None, alone=not addresses, teacher=teacher, on_note=on_note
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
        return self._cached.teacher if self._cached is not None else ""


def _with_arrays(batch: Any, answers: list[Tensor]) -> tuple[Any, ...]:
    """Return a batch's fields and the answers; arrays where the fields are such."""
    if any(isinstance(field, np.ndarray) for field in batch):
        return (*batch, *(None if a is None else a.numpy() for a in answers))
    return (*batch, *answers)


def _with_rows(samples: Sequence[Any], answers: list[Tensor]) -> list[tuple[Any, ...]]:
    """Return samples with their rows of the answers."""
    columns = [[None] * len(samples) if a is None else a.numpy() for a in answers]
    return [(*sample, *(column[n] for column in columns)) for n, sample in enumerate(samples)]


def _columns(samples: Sequence[Any]) -> list[Any]:
    """Return the fields of samples, each stacked."""
    return [
        torch.stack(list(field)) if isinstance(field[0], Tensor) else np.stack(field)
        for field in zip(*samples, strict=True)
    ]


def _lists(samples: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rows: list[Any] = []
    for sample in samples:
        rows.append(sample)
        if len(rows) == size:
            yield rows
            rows = []
    if rows:
        yield rows
