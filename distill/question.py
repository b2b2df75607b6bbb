"""A student's question to its teachers, and the rules by which it waits for the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .frames import Part


@dataclass(frozen=True)
class Rules:
    """The rules by which a student waits.

    `wait_s`: for an answer, at most. `without`: what follows where there is none: "wait" for so
    long and then fail; "hard_labels": go on without it, at once where no teacher is there; "fail",
    at once where no teacher is there any more. Once a whole `wait_s` was in vain, hard labels are
    gone on with at once until a teacher answers again. `timeout_s`: for one teacher's answer.
    `window`: questions asked ahead; 0: 2 for each teacher that is there and 2, at least 8. `most`:
    teachers that are asked, of those that are there; 0: all.
    """

    wait_s: float = 120.0
    without: str = "wait"
    timeout_s: float = 10.0
    window: int = 0
    window_nbytes: int = 256 << 20
    most: int = 0


class Question:
    """Rows that were asked about, and the answer once it is here."""

    def __init__(self, parts: list[Part], rows: int, whole: bool) -> None:
        self.parts, self.rows, self.whole = parts, rows, whole
        self.nbytes = sum(part.values.nbytes for part in parts)
        self.answer: list[Part] | None = None
        self.error = ""
        self.refusals = 0
        self.asked: dict[str, float] = {}  # who is being asked now, and since when
        self.wrong_by = set[str]()  # who has refused it, or answered it wrongly

    @property
    def is_over(self) -> bool:
        """Tell whether it is answered, or never will be."""
        return self.answer is not None or bool(self.error)

    def passes(self, there: Sequence[str]) -> set[str]:
        """Return whom not to ask: those asked now; who was wrong, as long as others are there."""
        others = set(there) - self.wrong_by
        return (self.wrong_by if others else set()) | self.asked.keys()
