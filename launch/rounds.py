"""The rules of rounds of node agents: who runs together, with which rank, when the next one comes.

Pure. A *node* is one agent process. It is first heard, then joins (its workers do not run, it wants
the next round), is a member of a round, and leaves or is lost. A *round* is formed of nodes that
have joined: `min_nodes` to `max_nodes` of them, ranks by arrival, so that whoever stays keeps its
place among those who stay, and the oldest has rank 0.

A running round is *broken* by a member that joins anew (its workers failed), leaves or is lost, and
by a node that waits for room, unless the job is nearly done or has changed just now. The members of
a broken round stop their workers and join; the next round forms when all that live have. The first
one forms when the last call is over or all places are taken. Nodes that are heard and have not
joined yet are waited for, so that one which is still importing costs no round of its own.

A failure counts only if nothing else had broken the round and no member of it was lost: preemption
is no failure, and what the peers of a lost node die of is none either. The job is *done* when all
members of one round have succeeded; whoever succeeded in a round that broke runs once more and
finds, in the state it loads, that nothing is left.

Round numbers rise, also above those that the nodes have seen on disk (`newest`), so that what a
round saves always sorts behind what an earlier one did, of a job before this one too.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..durable import schema
from ..durable.schema import Json
from .nodes import Failure, Member, Node, Report, Round, State

DONE, FAILED, STOPPED = "done", "failed", "stopped"


@dataclass(frozen=True)
class Policy:
    """The user's wishes for the rounds.

    Raises ValueError where they are impossible.
    """

    min_nodes: int
    max_nodes: int
    last_call_s: float = 3.0  # for more than min_nodes in the first round
    silent_s: float = 15.0  # a node silent for longer is lost
    dropped_s: float = 2.0  # so long after its connection broke
    reconnect_s: float = 6.0  # for a node to find a coordinator that was started anew
    rejoin_s: float = 120.0  # for a node to stop its workers, or to import, and join
    wait_for_nodes_s: float = 600.0  # below min_nodes for so long: the job fails
    freeze_s: float = 0.0  # no node is let in so soon after a round began
    nearly_done_s: float = 30.0  # nor when less remains, as the job reports it
    max_restarts: int = 3  # failures of the script that are tried again

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(f"{self.min_nodes}:{self.max_nodes} is no range of nodes")


class Rendezvous:
    """The machine of the rounds.

    Methods take `now` and leave it settled. `news` is what happened, for people. `state` is for
    reading: only the machine changes it.
    """

    def __init__(self, policy: Policy, now: float) -> None:
        self.policy = policy
        self.news: list[str] = []
        self.state = State(began_at=now, forming_since=now)

    # -- events

    def heard(self, name: str, now: float, *, host: str = "", pid: int = 0) -> None:
        """Note a sign of life of a node; the first one is its arrival."""
        self._heard(name, now, host, pid)
        self.tick(now)

    def dropped(self, name: str, now: float) -> None:
        """Note that a node's connection broke: unless it is heard again soon, it is lost."""
        node = self.state.nodes.get(name)
        if node is not None:
            soon = now - self.policy.silent_s + self.policy.dropped_s
            node.last_heard = min(node.last_heard, soon)

    def join(
        self,
        name: str,
        now: float,
        *,
        request: str,
        nproc: int,
        store: str,
        newest: int = 0,
        failure: Failure | None = None,
    ) -> None:
        """Note that a node's workers do not run: it wants the next round, and could host its store.

        A member of the running round ends it by this, unless it repeats the `request` by which it
        came into it.
        """
        state = self.state
        if nproc < 1 or not store:
            raise ValueError(f"{name} brings {nproc} workers and the store {store!r}")
        node = self._heard(name, now)
        repeats = node.request == request
        if repeats and (node.joined or self.runs_in(name) is not None):
            self.tick(now)
            return
        node.nproc, node.store, node.newest, node.request = nproc, store, newest, request
        member = state.is_member(name)
        if failure is not None and member and not repeats:
            what = f"rank {failure.rank} on {state.told(name)} {_how(failure.exit_code)}"
            if state.running or state.failures:
                state.failures.append((name, failure))
            if state.running:
                self._break(what, now)
            else:
                self.news.append(what)
        elif member and state.running:
            self._break(f"{state.told(name)} starts its workers anew", now)
        self.tick(now)

    def leave(self, name: str, now: float, how: str = "left") -> None:
        self._lose(name, how, now)
        self.tick(now)

    def succeed(self, name: str, round: int, now: float) -> None:
        """Note that all workers of a node have ended with 0 in this round.

        A word about an older round changes nothing.
        """
        state = self.state
        if self.runs_in(name) == round and name not in state.succeeded:
            state.succeeded.append(name)
        self.tick(now)

    def reported(
        self, name: str, now: float, throughput: float | None, remaining_s: float | None
    ) -> None:
        """Note a report of a member of the running round; others have nothing to say."""
        if self.runs_in(name) is not None:
            self.state.report = Report(throughput, remaining_s, now)
            self.tick(now)

    def end(self, outcome: str, message: str = "") -> None:
        """Note that the job is over; the first word counts."""
        if not self.state.outcome:
            self.state.outcome, self.state.message = outcome, message
            self.state.running = False
            self.news.append(f"{outcome}: {message}" if message else outcome)

    def tick(self, now: float) -> None:
        """Let time do what it does: leases end, waits end, rounds form and break."""
        state, policy = self.state, self.policy
        for node in list(state.nodes.values()):
            if now - node.last_heard >= policy.silent_s:
                self._lose(node.name, "is lost: it is silent", now)
            elif (
                not state.outcome and state.is_awaited(node) and now - node.since >= policy.rejoin_s
            ):
                self._lose(node.name, f"is lost: it did not join in {policy.rejoin_s:g} s", now)
        if state.outcome:
            return
        if state.running:
            self._run_on(now)
        if not state.running and not state.outcome:
            self._form(now)

    # -- questions

    @property
    def round(self) -> Round | None:
        """The running round, or the last one."""
        return self.state.round

    @property
    def running(self) -> bool:
        return self.state.running

    @property
    def outcome(self) -> tuple[str, str]:
        """DONE, FAILED or STOPPED and why; ("", "") while the job is not over."""
        return self.state.outcome, self.state.message

    @property
    def nodes(self) -> list[Node]:
        """The nodes that live, by arrival."""
        return self.state.by_arrival

    def left_s(self, now: float) -> float | None:
        """Return the seconds that remain by the last report.

        None: unknown, as where it said less and was wrong.
        """
        report = self.state.report
        if (
            report is None
            or report.remaining_s is None
            or now >= report.outdated_at(self.policy.nearly_done_s)
        ):
            return None
        return max(0.0, report.remaining_s - (now - report.at))

    def runs_in(self, name: str) -> int | None:
        """Return the number of the running round, if this node is a member of it."""
        return self.state.runs_in(name)

    def held_back(self, now: float) -> str:
        """Return the reason why a node that waits is not let in now; "" where it would be."""
        state = self.state
        if not state.running or state.round is None:
            return ""
        if len(state.round.members) >= self.policy.max_nodes:
            return f"all {self.policy.max_nodes} places are taken"
        if state.succeeded:
            return "the job is ending"
        left_s = self.left_s(now)
        if left_s is not None and left_s < self.policy.nearly_done_s:
            return f"nearly done: {left_s:.0f} s are left"
        frozen_s = state.round.formed_at + self.policy.freeze_s - now
        if frozen_s > 0:
            return f"frozen for {frozen_s:.0f} s after the last change"
        starting = [state.told(node.name) for node in self.nodes if state.is_awaited(node)]
        return f"for {', '.join(starting)}, to come in together" if starting else ""

    def next_tick(self, now: float) -> float:
        """Return when `tick` is due at the latest, if nothing else happens."""
        state, policy = self.state, self.policy
        times = [node.last_heard + policy.silent_s for node in state.nodes.values()]
        times += [n.since + policy.rejoin_s for n in state.nodes.values() if state.is_awaited(n)]
        if not state.running:
            times.append(state.forming_since + policy.wait_for_nodes_s)
            if state.enough_since is not None:
                times.append(state.enough_since + policy.last_call_s)
        elif state.round is not None:
            times.append(state.round.formed_at + policy.freeze_s)
            if state.report is not None:
                times.append(state.report.outdated_at(policy.nearly_done_s))
        return min((time for time in times if time > now), default=now + policy.silent_s)

    # -- to disk and back

    def dump(self) -> Json:
        """Return the state as JSON values."""
        return schema.dump(State, self.state)

    @classmethod
    def restored(cls, policy: Policy, dumped: Json, now: float) -> Rendezvous:
        """Make the machine of the rounds again, out of what `dump` gave of another.

        Nobody could be heard meanwhile: whoever lives will be soon.

        Raises ValueError, which names what is wrong, where no `dump` of this version gave that.
        """
        made = cls(policy, now)
        state = made.state = schema.load(State, dumped)
        for node in state.nodes.values():
            node.last_heard = now - max(0.0, policy.silent_s - policy.reconnect_s)
            node.since = now
        for place in state.places:
            place.began = place.not_before = now
        found = state.round
        if found is not None:  # a machine that booted counts anew
            state.round = dataclasses.replace(found, formed_at=min(found.formed_at, now))
        state.began_at = min(state.began_at, now)
        state.forming_since, state.enough_since = now, None
        return made

    # -- inside

    def _heard(self, name: str, now: float, host: str = "", pid: int = 0) -> Node:
        state = self.state
        node = state.nodes.get(name)
        if node is None:
            node = state.nodes[name] = Node(name, state.arrivals, now, now, host, pid)
            state.arrivals += 1
            self.news.append(f"{state.told(name)} arrived")
        node.last_heard = now
        node.host, node.pid = host or node.host, pid or node.pid
        return node

    def _lose(self, name: str, how: str, now: float) -> None:
        state = self.state
        if name not in state.nodes:
            return
        what = f"{state.told(name)} {how}"
        broken = self.runs_in(name) is not None and name not in state.succeeded
        del state.nodes[name]
        if broken:
            self._break(what, now)
        else:
            self.news.append(what)

    def _break(self, why: str, now: float) -> None:
        state = self.state
        assert state.round is not None
        state.running, state.forming_since, state.enough_since = False, now, None
        for member in state.round.members:
            if (node := state.nodes.get(member.name)) is not None:
                node.since = now
        self.news.append(f"round {state.round.number} ends: {why}")

    def _run_on(self, now: float) -> None:
        state = self.state
        assert state.round is not None
        if all(member.name in state.succeeded for member in state.round.members):
            self.end(DONE)
            return
        waiting = [state.told(node.name) for node in self.nodes if node.joined]
        if waiting and not self.held_back(now):
            self._break(f"{', '.join(waiting)} joined", now)

    def _form(self, now: float) -> None:
        state, policy = self.state, self.policy
        joined = [node for node in self.nodes if node.joined]
        coming = [node for node in self.nodes if not node.joined]
        before = state.round
        if before is not None and any(before.rank(node.name) is not None for node in coming):
            return  # they stop their workers; each is lost where that takes too long
        self._judge()
        if state.outcome:
            return
        if len(joined) < policy.min_nodes:
            state.enough_since = None
            if now - state.forming_since >= policy.wait_for_nodes_s:
                self.end(
                    FAILED,
                    f"only {len(joined)} of at least {policy.min_nodes} nodes were there for "
                    f"{policy.wait_for_nodes_s:g} s: start more with `edl launch --join`, or allow "
                    "fewer with --nodes",
                )
            return
        if state.enough_since is None:
            state.enough_since = now
        called = before is not None or now - state.enough_since >= policy.last_call_s
        if len(joined) < policy.max_nodes and (coming or not called):
            return
        chosen = joined[: policy.max_nodes]
        highest = max([before.number if before else 0, *(node.newest for node in chosen)])
        state.round = Round(
            number=highest + 1,
            restarts=before.restarts + 1 if before else 0,
            members=tuple(Member(node.name, node.host, node.nproc) for node in chosen),
            store=chosen[0].store,
            formed_at=now,
        )
        for node in chosen:
            node.store = ""
        state.running, state.enough_since, state.succeeded = True, None, []
        self.news.append(
            f"round {state.round.number} begins: {_count(len(chosen), 'node')}, "
            f"{_count(state.round.world_size, 'worker')}"
        )

    def _judge(self) -> None:
        """Judge whether a failure of the script broke the last round.

        Only once all that live have joined, so that a lost one is known to be.
        """
        state = self.state
        if not state.failures or state.round is None:
            return
        failures, state.failures = state.failures, []
        if any(member.name not in state.nodes for member in state.round.members):
            return
        if state.restarts_used < self.policy.max_restarts:
            state.restarts_used += 1
            return
        # Peers of a killed worker fail too, maybe sooner; they say so in words, it cannot.
        name, failure = next((each for each in failures if each[1].exit_code < 0), failures[0])
        tried = f", after {state.restarts_used} restarts" if state.restarts_used else ""
        words = f"\nThe end of its log:\n{failure.words}" if failure.words else ""
        self.end(
            FAILED,
            f"rank {failure.rank} on {state.told(name)} {_how(failure.exit_code)}{tried}.{words}",
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _how(exit_code: int) -> str:
    if exit_code < 0:
        return f"was killed by signal {-exit_code}"
    return f"ended with exit code {exit_code}"
