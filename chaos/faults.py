"""The faults of the matrix, its rows: each strikes a Scene at the moment that a phase has come."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .controller import Answer, Hit
from .scene import NotMeaningful, Scene

Strike = Callable[[Scene, Hit], Answer | None]

# Against lease_s and server_timeout_s of the matrix' jobs (cell.py).
_SLEEP_S = 2.0
_SERVER_SLEEP_S = 8.0
_BAD_NETWORK_S = 2.0
_SNAPSHOT_POINTS = ("ps.snapshot.begin", "ps.snapshot.mid", "ps.snapshot.commit")
_NOTHING_YET = {"register": "no snapshot has been written yet"}


@dataclass(frozen=True)
class Fault:
    """A fault and how it strikes.

    `needs`: how many replicas of a role must have registered before it can strike. `not_in`: phases
    in which it has no meaning, and why. `stall_s`: the longest pause of a student that is sound, of
    a fault that strikes teachers; the job has them then. `has_deltas`: the job leaves deltas, and
    somebody follows it. `is_outside`: no worker, server or master may be started again for it.
    """

    name: str
    about: str
    strike: Strike
    needs: Mapping[str, int] = field(default_factory=dict)
    not_in: Mapping[str, str] = field(default_factory=dict)
    stall_s: float | None = None
    has_deltas: bool = False
    is_outside: bool = False

    @property
    def has_teachers(self) -> bool:
        return self.stall_s is not None


# -- processes


def _kill(role: str) -> Strike:
    def strike(scene: Scene, hit: Hit) -> None:
        scene.send(role, scene.victim(role, hit))

    return strike


def _kill_again(role: str, point: str) -> Strike:
    """Return a strike that kills a replica, and its replacement when that reaches the point."""

    def strike(scene: Scene, hit: Hit) -> None:
        index = scene.victim(role, hit)
        # A server that has no snapshot to read does not reach the point at which it reads one.
        reads = role != "ps" or scene.snapshots(index)
        pid = scene.send(role, index)
        points = [point] if reads else ["ps.register"]
        scene.at(points, scene.kill, when=lambda h: h.index == index and h.pid != pid)

    return strike


def _kill_all(*roles: str) -> Strike:
    def strike(scene: Scene, _hit: Hit) -> None:
        for role in roles:
            scene.send_all(role)

    return strike


def _kill_two_servers(scene: Scene, hit: Hit) -> None:
    first = scene.victim("ps", hit)
    scene.send("ps", first)
    others = [index for index in scene.alive("ps") if index != first]
    if not others:
        raise NotMeaningful("only one server runs at this moment")
    scene.send("ps", scene.random.choice(others))


def _kill_each(*roles: str) -> Strike:
    """Return a strike that kills one of each role, last the one that has reached the point."""

    def strike(scene: Scene, hit: Hit) -> None:
        victims = {role: scene.victim(role, hit) for role in roles}
        for role in sorted(roles, key=lambda role: role == hit.role):
            scene.send(role, victims[role])

    return strike


def _signal(role: str, number: signal.Signals) -> Strike:
    def strike(scene: Scene, hit: Hit) -> None:
        scene.send(role, scene.victim(role, hit), number)

    return strike


def _sleep(role: str, for_s: float) -> Strike:
    def strike(scene: Scene, hit: Hit) -> None:
        scene.sleep(role, scene.victim(role, hit), for_s)

    return strike


# -- network


def _network(rules: str, for_s: float = _BAD_NETWORK_S) -> Strike:
    def strike(scene: Scene, _hit: Hit) -> None:
        scene.network(rules, for_s)

    return strike


# -- disk


def _failing_disk(number: int, times: int, then_kill: bool) -> Strike:
    """Return a strike that lets the next writes of snapshots fail.

    `then_kill`: kill the server after the last.
    """

    def strike(scene: Scene, hit: Hit) -> Answer | None:
        failed = 0

        def fail(later: Hit) -> Answer:
            nonlocal failed
            failed += 1
            if failed < times:
                scene.at(["ps.snapshot.mid"], fail)
            elif then_kill:
                scene.send("ps", later.index)
            return {"do": "oserror", "errno": number}

        if hit.point in _SNAPSHOT_POINTS:
            return fail(hit)
        scene.at(["ps.snapshot.mid"], fail)
        return None

    return strike


def _damage(suffix: str, damage: Callable[[Path], None]) -> Strike:
    """Return a strike that damages a server's newest snapshot file so named, and kills it."""

    def strike(scene: Scene, hit: Hit) -> None:
        index = scene.victim("ps", hit)
        mine = scene.snapshots(index, suffix)
        if not mine:
            raise NotMeaningful("no snapshot of the server has been written yet")
        damage(mine[-1])
        scene.send("ps", index)

    return strike


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _at_deltas(answer: Answer, times: int) -> Strike:
    """Return a strike that has the next writes of deltas by servers do as the answer says."""

    def strike(scene: Scene, hit: Hit) -> Answer | None:
        is_one = hit.point == "ps.delta.mid"
        for _ in range(times - is_one):
            scene.at(["ps.delta.mid"], lambda _hit: answer)
        return answer if is_one else None

    return strike


# -- teachers


def _teach(how: str) -> Strike:
    """Return a strike after which a teacher does so (counting.py) until the job's end."""

    def strike(scene: Scene, hit: Hit) -> None:
        scene.teach(scene.victim("teacher", hit), how)

    return strike


# -- the rows

_W, _S, _ALL_W, _ALL_S = {"worker": 1}, {"ps": 1}, {"worker": 2}, {"ps": 3}
_AT_THE_END = {"shutdown": "who ends now is not started again"}
_T, _ALL_T = {"teacher": 1}, {"teacher": 2}
_UNTAUGHT = {"shutdown": "nobody is taught any more"}
# Several times teacher_timeout_s (cell.py), for a busy machine; and beside it the start of one.
_ONE_AWAY_S, _ALL_AWAY_S = 10.0, 20.0
_HANG_S = 3.0
_LAST_IS_WRITTEN = {"shutdown": "the last delta is written"}

FAULTS = (
    Fault("kill worker", "SIGKILL", _kill("worker"), _W),
    Fault(
        "kill worker twice",
        "and its replacement as it registers",
        _kill_again("worker", "worker.register"),
        _W,
        _AT_THE_END,
    ),
    Fault("kill all workers", "SIGKILL, both", _kill_all("worker"), _ALL_W),
    Fault(
        "stop worker",
        f"SIGSTOP for {_SLEEP_S:g} s, twice its lease",
        _sleep("worker", _SLEEP_S),
        _W,
    ),
    Fault("drain worker", "SIGTERM", _signal("worker", signal.SIGTERM), _W),
    Fault(
        "crash worker", "SIGSEGV: a failure, no preemption", _signal("worker", signal.SIGSEGV), _W
    ),
    Fault("kill server", "SIGKILL", _kill("ps"), _S),
    Fault(
        "kill server twice",
        "and its replacement while it recovers",
        _kill_again("ps", "ps.recover"),
        _S,
        _AT_THE_END | _NOTHING_YET,
    ),
    Fault("kill two servers", "SIGKILL, two of three", _kill_two_servers, {"ps": 2}),
    Fault("kill all servers", "SIGKILL, all three", _kill_all("ps"), _ALL_S),
    Fault(
        "stop server",
        f"SIGSTOP for {_SERVER_SLEEP_S:g} s, twice its timeout",
        _sleep("ps", _SERVER_SLEEP_S),
        _S,
    ),
    Fault("kill master", "SIGKILL", _kill("master")),
    Fault(
        "kill master twice",
        "and its successor while it recovers",
        _kill_again("master", "master.recover"),
    ),
    Fault("stop master", f"SIGSTOP for {_SLEEP_S:g} s, twice a lease", _sleep("master", _SLEEP_S)),
    Fault("kill worker and server", "SIGKILL, one of each", _kill_each("worker", "ps"), _W | _S),
    Fault("kill server and master", "SIGKILL, both", _kill_each("ps", "master"), _S),
    Fault(
        "kill everything",
        "SIGKILL: master, servers and workers; only the supervisor is left",
        _kill_all("master", "ps", "worker"),
        _ALL_W | _ALL_S,
    ),
    Fault("lose worker-server replies", "every second one", _network("worker>ps:lose=0.5")),
    Fault("lose worker-master replies", "every second one", _network("worker>master:lose=0.5")),
    Fault(
        "lose master-server replies",
        "every second one, both ways",
        _network("master>ps:lose=0.5;ps>master:lose=0.5"),
    ),
    Fault(
        "duplicate requests",
        "every call of everybody arrives twice",
        _network("worker>ps:dup=1;worker>master:dup=1;master>ps:dup=1;ps>master:dup=1"),
    ),
    Fault(
        "delay and reorder",
        "a third of all calls late by 0.1 s, a third overtaken",
        _network(
            ";".join(
                f"{pair}:delay=0.3:0.1,reorder=0.3"
                for pair in ("worker>ps", "worker>master", "master>ps", "ps>master")
            )
        ),
    ),
    Fault("cut worker from server", "for 2 s", _network("worker>ps:cut")),
    Fault("cut worker from master", "for 2 s, twice a lease", _network("worker>master:cut")),
    Fault("cut master from server", "for 2 s", _network("master>ps:cut")),
    Fault(
        "cut server from master",
        f"for {_SERVER_SLEEP_S:g} s, twice the timeout: it serves workers, and is replaced",
        _network("ps>master:cut", _SERVER_SLEEP_S),
    ),
    Fault(
        "slow link",
        "every call of a worker to a server takes 50 ms more",
        _network("worker>ps:slow=0.05", 3.0),
    ),
    Fault(
        "disk full",
        "ENOSPC at the next three snapshots",
        _failing_disk(errno.ENOSPC, 3, False),
        not_in=_AT_THE_END,
    ),
    Fault(
        "disk error and kill server",
        "EIO at the next snapshot, then SIGKILL",
        _failing_disk(errno.EIO, 1, True),
        not_in=_AT_THE_END,
    ),
    Fault(
        "flipped bit and kill server",
        "one bit of the newest snapshot's file, then SIGKILL",
        _damage(".safetensors", _flip),
        not_in=_AT_THE_END | _NOTHING_YET,
    ),
    Fault(
        "torn manifest and kill server",
        "half of the newest snapshot's manifest, then SIGKILL",
        _damage(".link", _tear),
        not_in=_AT_THE_END | _NOTHING_YET,
    ),
    Fault("kill teacher", "SIGKILL, one of two", _kill("teacher"), _T, stall_s=_ONE_AWAY_S),
    Fault("kill all teachers", "SIGKILL, both", _kill_all("teacher"), _ALL_T, stall_s=_ALL_AWAY_S),
    Fault(
        "stop teacher",
        f"SIGSTOP for {_SLEEP_S:g} s, twice its lease",
        _sleep("teacher", _SLEEP_S),
        _T,
        stall_s=_ONE_AWAY_S,
    ),
    Fault(
        "hang teacher",
        "it beats, and answers nothing any more",
        _teach("hang"),
        _T,
        _UNTAUGHT,
        _ONE_AWAY_S,
    ),
    Fault(
        "slow teacher",
        "from now on it takes 10 times as long",
        _teach("slow"),
        _T,
        _UNTAUGHT,
        _ONE_AWAY_S,
    ),
    Fault(
        "teacher says NaN",
        "from now on, for all records",
        _teach("nan"),
        _T,
        _UNTAUGHT,
        _ONE_AWAY_S,
    ),
    Fault(
        "teacher says too much",
        "from now on it answers with a row too many",
        _teach("rows"),
        _T,
        _UNTAUGHT,
        _ONE_AWAY_S,
    ),
    Fault("kill server with deltas", "SIGKILL", _kill("ps"), _S, has_deltas=True),
    Fault(
        "kill master with deltas", "SIGKILL: it takes the cuts", _kill("master"), has_deltas=True
    ),
    Fault(
        "kill consumer",
        "SIGKILL; another begins at the newest base",
        _kill("consumer"),
        {"consumer": 1},
        has_deltas=True,
        is_outside=True,
    ),
    Fault(
        "stop consumer",
        f"SIGSTOP for {_SLEEP_S:g} s: ten deltas, or a new base and no way to it",
        _sleep("consumer", _SLEEP_S),
        {"consumer": 1},
        has_deltas=True,
        is_outside=True,
    ),
    Fault(
        "delta store full",
        "ENOSPC at the next three files",
        _at_deltas({"do": "oserror", "errno": errno.ENOSPC}, 3),
        not_in=_LAST_IS_WRITTEN,
        has_deltas=True,
        is_outside=True,
    ),
    Fault(
        "delta store hangs",
        f"the next file takes {_HANG_S:g} s",
        _at_deltas({"do": "sleep", "for_s": _HANG_S}, 1),
        not_in=_LAST_IS_WRITTEN,
        has_deltas=True,
        is_outside=True,
    ),
)
