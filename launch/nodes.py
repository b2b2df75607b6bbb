"""The nodes of a launched job and their round, as its coordinator and the next one know them.

How one state follows another is rounds.py. The fields of `State`, and of what is in it, are a
format of the journal.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Failure:
    """A worker that ended with an error.

    `exit_code` < 0: by that signal. `words`: its last lines.
    """

    rank: int
    exit_code: int
    words: str = ""


@dataclass
class Node:
    """A node agent's process, as the coordinator knows it.

    `store`: the address at which it would host the store of a round; "" until it joins. `since`:
    when it was first expected to join.
    """

    name: str
    arrival: int
    since: float
    last_heard: float
    host: str = ""
    pid: int = 0
    nproc: int = 0
    store: str = ""
    newest: int = 0
    request: str = ""  # of its last join

    @property
    def joined(self) -> bool:
        return bool(self.store)


@dataclass(frozen=True)
class Member:
    """A node in a round, and the number of its workers."""

    name: str
    host: str
    nproc: int


@dataclass(frozen=True)
class Round:
    """A round of nodes: `members` by rank.

    `restarts`: the rounds of this job before it.
    """

    number: int
    restarts: int
    members: tuple[Member, ...]
    store: str
    formed_at: float

    def rank(self, name: str) -> int | None:
        return next((i for i, member in enumerate(self.members) if member.name == name), None)

    @property
    def world_size(self) -> int:
        return sum(member.nproc for member in self.members)


@dataclass(frozen=True)
class Report:
    """The job's word about itself at `at`."""

    throughput: float | None
    remaining_s: float | None
    at: float

    def outdated_at(self, grace_s: float) -> float:
        """Return when the job should have ended by this report, plus `grace_s` (at least 60 s)."""
        return self.at + (self.remaining_s or 0.0) + max(grace_s, 60.0)


@dataclass
class Place:
    """A place for a node agent that the coordinator keeps itself, and what became of its agents."""

    index: int
    incarnation: str = ""  # of the agent, whose name as a node it is; "": none runs
    pid: int = 0  # where it is a process of this machine,
    started: int = 0  # and its start (runtime/base.py)
    began: float = 0.0
    not_before: float = 0.0
    leaving: bool = False  # told to go
    failures: int = 0  # in a row, each before it was in a round
    end: str = ""  # how the last one ended, in words
    waits: str = ""  # why the one that is to run does not, in words of the runtime


@dataclass
class State:
    """The state that a restarted coordinator must know.

    Its fields are part of the journal's format.
    """

    began_at: float
    forming_since: float
    nodes: dict[str, Node] = field(default_factory=dict)
    arrivals: int = 0
    round: Round | None = None
    running: bool = False
    enough_since: float | None = None  # since when there have been min_nodes
    succeeded: list[str] = field(default_factory=list)  # members of the round
    failures: list[tuple[str, Failure]] = field(default_factory=list)  # by node, not judged yet
    restarts_used: int = 0
    report: Report | None = None
    outcome: str = ""
    message: str = ""
    places: list[Place] = field(default_factory=list)  # of agents that the coordinator keeps
    wanted: int = 0  # so many of them

    @property
    def by_arrival(self) -> list[Node]:
        """The nodes that live, the oldest first."""
        return sorted(self.nodes.values(), key=lambda node: node.arrival)

    def is_member(self, name: str) -> bool:
        """Tell whether this node is a member of the round, which may be over."""
        return self.round is not None and self.round.rank(name) is not None

    def runs_in(self, name: str) -> int | None:
        """Return the number of the running round, if this node is a member of it."""
        return self.round.number if self.round and self.running and self.is_member(name) else None

    def has_succeeded(self, name: str) -> bool:
        """Tell whether all workers of this node have ended with 0 in the round."""
        return name in self.succeeded

    def is_awaited(self, node: Node) -> bool:
        """Tell whether this node has still to join."""
        return not node.joined and self.runs_in(node.name) is None

    def told(self, name: str) -> str:
        """Return what people call this node."""
        node = self.nodes[name]
        return f"node-{node.arrival}" + (f" ({node.host})" if node.host else "")
