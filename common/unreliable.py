"""A bad network, made inside the caller: what EDL_NET says happens to this process's calls.

`EDL_NET="seed=3;worker>ps:lose=0.05,dup=0.05;worker>master.GetTask:delay=0.1:0.2"`: rules of
CALLER>PEER[.METHOD], roles are worker, ps and master, METHOD is an RPC of their contracts (Pull and
Push also where they travel on the tensor plane). The first rule that fits decides. Its faults, with
P a probability:
  drop=P       the request is lost: never executed
  lose=P       the reply is lost: executed, and the caller does not learn it
  dup=P        the request arrives twice, one after the other
  delay=P:S    the request arrives S seconds late
  reorder=P    the next request of this rule overtakes this one (or it arrives late: `_OVERTAKEN_S`)
  slow=S       every request arrives S seconds late
  cut[=A:F]    nothing arrives: always, or from A seconds of this process's life on for F seconds
A value that begins with `/` is a file with such rules, read again whenever it changes: a test may
turn the network's faults on and off while the job runs. All draws are of the seed and of who calls.

Without the variable nothing of this is in any call's way: `armed` is looked at once a connection.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc

from .errors import UsageError

VARIABLE = "EDL_NET"
armed = bool(os.environ.get(VARIABLE))

_ROLES = ("worker", "ps", "master")
_OVERTAKEN_S = 0.2  # how long a request waits for another to overtake it

Reply = TypeVar("Reply")
Waiter = Callable[[], Reply]


class Lost(grpc.RpcError):
    """The error that gRPC raises where a peer cannot be reached."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self._why = why

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._why


@dataclass
class Rule:
    """The fate of calls of one caller to one peer; "" is any method."""

    caller: str
    peer: str
    method: str = ""
    chances: dict[str, float] = field(default_factory=dict)  # drop, lose, dup, delay, reorder
    delay_s: float = 0.0
    slow_s: float = 0.0
    cut: tuple[float, float] | None = None  # from, for
    overtaken: threading.Event = field(default_factory=threading.Event)

    def fits(self, caller: str, peer: str, method: str) -> bool:
        return (caller, peer) == (self.caller, self.peer) and self.method in ("", method)


def parse(text: str) -> tuple[str, list[Rule]]:
    """Return the seed and the rules. Raises UsageError."""
    seed, rules = "0", []
    for part in filter(None, (p.strip() for p in text.replace("\n", ";").split(";"))):
        if part.startswith("seed="):
            seed = part.removeprefix("seed=")
            continue
        who, colon, what = part.partition(":")
        caller, arrow, peer = who.partition(">")
        peer, _, method = peer.partition(".")
        if not (colon and arrow and caller in _ROLES and peer in _ROLES):
            raise UsageError(
                f"{VARIABLE}: {part!r} is no rule; write CALLER>PEER[.METHOD]:FAULT=VALUE,... with "
                f"roles of {', '.join(_ROLES)}"
            )
        rules.append(_rule(Rule(caller, peer, method), what))
    return seed, rules


def _rule(rule: Rule, what: str) -> Rule:
    for fault in what.split(","):
        name, _, value = fault.partition("=")
        first, _, second = value.partition(":")
        try:
            match name:
                case "drop" | "lose" | "dup" | "reorder":
                    rule.chances[name] = float(value)
                case "delay":
                    rule.chances[name], rule.delay_s = float(first), float(second)
                case "slow":
                    rule.slow_s = float(value)
                case "cut":
                    rule.cut = (float(first), float(second)) if value else (0.0, float("inf"))
                case _:
                    raise ValueError
        except ValueError:
            raise UsageError(
                f"{VARIABLE}: {fault!r} is no fault; there are drop=P, lose=P, dup=P, reorder=P, "
                "delay=P:SECONDS, slow=SECONDS, cut and cut=FROM:SECONDS"
            ) from None
    return rule


class Network:
    """The rules, as one process's calls meet them."""

    def __init__(
        self,
        told: str,
        caller: str,
        index: int,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = Path(told) if told.startswith("/") else None
        self._changed = 0
        self._caller, self._index = caller, index
        self._now, self._sleep = now, sleep
        self._began = now()
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        if self._path is None:
            self._use(told)

    def start(self, peer: str, method: str, begin: Callable[[], Waiter[Reply]]) -> Waiter[Reply]:
        """Send a request as this network does; the waiter raises Lost where nothing comes back."""
        with self._lock:
            rule, fate = self._fate(peer, method)
            if rule is None:
                return begin()
            rule.overtaken.set()
        what = f"{self._caller}>{peer}.{method}"
        if "cut" in fate or "drop" in fate:
            return _lost(f"{what}: the request was lost")
        if rule.slow_s:
            self._sleep(rule.slow_s)
        if "delay" in fate:
            self._sleep(rule.delay_s)
        if "reorder" in fate:
            rule.overtaken.clear()
            rule.overtaken.wait(_OVERTAKEN_S)
        wait = begin()

        def gathered() -> Reply:
            reply = wait()
            if "dup" in fate:
                begin()()
            if "lose" in fate:
                raise Lost(f"{what}: the reply was lost")
            return reply

        return gathered

    def _fate(self, peer: str, method: str) -> tuple[Rule | None, set[str]]:
        if self._path is not None:
            self._read(self._path)
        fitting = (r for r in self._rules if r.fits(self._caller, peer, method))
        rule = next(fitting, None)
        if rule is None:
            return None, set()
        fate = {name for name, chance in rule.chances.items() if self._random.random() < chance}
        if rule.cut is not None:
            begins, lasts_s = rule.cut
            if begins <= self._now() - self._began < begins + lasts_s:
                fate.add("cut")
        return rule, fate

    def _read(self, path: Path) -> None:
        try:
            changed = path.stat().st_mtime_ns
            if changed != self._changed:
                self._use(path.read_text())
                self._changed = changed
        except FileNotFoundError:
            self._rules = []

    def _use(self, text: str) -> None:
        seed, self._rules = parse(text)
        self._random = random.Random(f"{seed} {self._caller} {self._index}")


_network: Network | None = None
_making = threading.Lock()


def start(peer: str, method: str, begin: Callable[[], Waiter[Reply]]) -> Waiter[Reply]:
    """Call `Network.start` of this process.

    Who it is stands in its environment, once it runs.
    """
    global _network
    with _making:
        if _network is None:
            role = os.environ.get("EDL_ROLE", "master")
            caller = "ps" if role == "server" else role
            index = int(os.environ.get("EDL_INDEX", "0"))
            _network = Network(os.environ[VARIABLE], caller, index)
    return _network.start(peer, method, begin)


class Method:
    """A method of a channel, over this network. `path` is gRPC's: /package.Service/Method."""

    def __init__(self, method: Any, path: str) -> None:
        service, _, self._name = path.strip("/").rpartition("/")
        self._peer = "master" if service.endswith("Master") else "ps"
        self._method = method

    def __call__(self, request: Any, timeout: float) -> Any:
        return start(
            self._peer, self._name, lambda: lambda: self._method(request, timeout=timeout)
        )()

    def future(self, request: Any, timeout: float) -> Any:
        return _Future(
            start(
                self._peer,
                self._name,
                lambda: self._method.future(request, timeout=timeout).result,
            )
        )


@dataclass(frozen=True)
class _Future:
    """The part of a gRPC future that is used here."""

    result: Waiter[Any]


def _lost(why: str) -> Waiter[Any]:
    def wait() -> Any:
        raise Lost(why)

    return wait
