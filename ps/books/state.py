"""The state of a shard that its lock protects, and how those who hold the lock await each other.

The docstring of store.py says in which order it changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ...common.errors import EdlError
from ...common.patience import Patience
from .aggregation import Aggregation, Policy, Update
from .ledger import Entry, Ledger
from .parameters import Parameters
from .slots import SlotMap
from .view import Observer


@dataclass(frozen=True)
class ShardBooks:
    """A shard's state but the parameters themselves."""

    version: int = 0
    low_water: int = 0
    ledger: tuple[Entry, ...] = ()
    pushes: int = 0  # waiting in the aggregation
    sums: Update = field(default_factory=Update)  # of those


class ShardState:
    """The state of one shard: parameters, version, ledger and aggregation.

    Read and written under `lock`.
    """

    def __init__(self, index: int, slot_map: SlotMap, policy: Policy) -> None:
        self.index = index
        self.slot_map = slot_map
        self.policy = policy
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        # For those of whom there may be one for each worker: each push would wake all of them.
        self.stepped = threading.Condition(self.lock)  # there is another version
        self.thawed = threading.Condition(self.lock)  # pushes that were held back may go on
        self.parameters: Parameters | None = None
        self.spec_is_final = False
        self.version = 0
        self.ledger = Ledger()
        self.aggregation = Aggregation(policy)
        self.applying: dict[int, Update] = {}  # by task with a span reserved: it is being applied
        self.pinning = False  # pushes wait until the steps under way have ended
        self.torn = False  # a step was begun and did not end
        self.life = 0  # of the parameters: how often they were replaced
        self.observers: dict[object, Observer] = {}  # by who made them

    def held(self) -> Parameters:
        """Return the parameters of a shard that has been told the model."""
        assert self.parameters is not None, "the model is not known yet"
        return self.parameters

    def begin(self, parameters: Parameters) -> None:
        """Begin with these parameters, in place of others."""
        self.end_view()
        self.parameters = parameters
        self.life += 1

    def end_view(self) -> None:
        """Tell observers that what they show is no longer so."""
        for observer in self.observers.values():
            observer.set_valid(False)
        self.observers = {}

    def books(self) -> ShardBooks:
        """Return the books as they are."""
        return ShardBooks(
            self.version,
            self.ledger.low_water,
            self.ledger.entries(),
            self.aggregation.pushes,
            self.aggregation.sums(),
        )

    def await_steps(self, over: Callable[[], bool]) -> None:
        """Wait for steps under way until `over`."""
        patience = None
        while not over():
            patience = self.wait_for_step(patience)

    def wait_for_step(self, patience: Patience | None) -> Patience:
        """Wait for any change, and return what that step's next wait is given.

        Raises EdlError where a step does not end: this process can only end, to be replaced.
        """
        patience = patience or Patience(f"a step under way on server {self.index}")
        try:
            patience.wait(self.changed)
        except EdlError:
            self.tear(True)
            self.wake_all()
            raise
        return patience

    def wait_version(self, newer_than: int, timeout_s: float) -> int:
        """Wait until the version is above `newer_than`, or the time is over, and return it."""
        deadline = time.monotonic() + timeout_s
        seen = self.version
        while self.version <= newer_than:
            self.check_whole()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            self.stepped.wait(left_s)
            if self.version != seen:
                seen = self.version
                self.stepped.notify()  # the next one
        return self.version

    def wake_all(self) -> None:
        """Let everybody look again."""
        for condition in (self.changed, self.stepped, self.thawed):
            condition.notify_all()

    def tear(self, torn: bool) -> None:
        """Note that a step has been begun that must end, or has ended."""
        self.torn = torn
        for observer in self.observers.values():
            observer.set_valid(not torn)

    def check_whole(self) -> None:
        """Raise EdlError where a step failed half way."""
        if self.torn:
            raise EdlError(
                f"server {self.index} failed in the midst of a step (see its log): what it holds "
                "is no longer exact, so it applies and keeps nothing more"
            )
