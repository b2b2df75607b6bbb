"""The throughput of a job on parameter servers, by its workers w, its servers p and minibatch B.

A worker goes round: it works by itself (waits for its data, computes), then pulls and pushes. Of a
pull and a push the hottest server needs `serve` seconds, and while it serves one worker the others
queue. So there are two regimes, with a knee between them:

    workers bound   a round takes own + trip + serve, less what overlaps
    servers bound   a round takes w serve: the hottest server is never idle

    own   = (own_s + own_record_s B) (1 + crowding (w - 1))        at the worker
    trip  = trip_s + trip_server_s (p - 1) + trip_record_s B       pull and push, less their service
    serve = serve_s + serve_record_s B (hot + (1 - hot) / p)       of the hottest server
    knee  = (own + trip + serve) / serve                           in workers; the whole of p mu

Near the knee calls meet. By mean value analysis of a closed network (Reiser and Lavenberg 1980, in
the approximation of Schweitzer 1979) an arriving call finds (w - 1) / w of the mean queue, thus

    served = serve / (1 - queueing (w - 1) serve / round),    round = own + trip + served

which has a closed form. With `queueing` 1 that is the network of times drawn at random; with 0 the
knee is sharp, as of workers that have settled into turns. Neither is right: beside simulated queues
whose times vary by 10 to 30 % a round is off by 9 % in the mean with 1, by 5 % with 0, and by 2 %
with 0.6. So it is fitted, and that is its value where no point tells of it.

The knee is known from points below it by `busy`: service takes busy * round / w, however long it is
until somebody has to wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .model import Floats, check, floats, plain

PRIOR_QUEUEING = 0.6
# Of own_s to queueing, without `hidden`, in units of the means. A measurement's weight is 1.
_PRIORS = np.array([0.5, 0.5, 0, 0.25, 0, 0.25, 0, 0, 0, PRIOR_QUEUEING])
_PRIOR_WEIGHTS = np.array([1e-2, 1e-2, 0.2, *[1e-2] * 7])
_START = np.array([0.5, 0.5, 0.1, 0.25, 0.1, 0.25, 0.5, 0.5, 0.1, PRIOR_QUEUEING])
_OF_ROUND = 3.0  # weight of a round's time: it is what is asked for
_ROUNDING = 1e-6
_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class ServersPoint:
    """A measured point: where a job ran, how fast, and the mean times of a worker's minibatch.

    `busy`: the share of the time in which the hottest server could not have served anybody else (of
    its cores, or of what it is short of). `share`: of all that is served, the hottest server's.
    None: not measured.
    """

    workers: int
    servers: int
    minibatch: int  # records
    records_per_s: float  # of all workers
    data_s: float  # waited for the next minibatch
    compute_s: float
    pull_s: float
    push_s: float
    busy: float | None = None
    share: float | None = None


@dataclass(frozen=True)
class ServersParams:
    """The model of a round (see above); predicts for numbers and for arrays, which broadcast.

    Every method raises ValueError where there is not at least one worker, server and record.
    """

    own_s: float
    own_record_s: float
    crowding: float  # of its own work, that each other worker makes it longer: they share cores
    trip_s: float
    trip_server_s: float
    trip_record_s: float
    serve_s: float
    serve_record_s: float
    hot: float  # the share of all load that stays on one server, however many there are
    hidden: float  # of the shorter of own work and exchange, that runs behind the other
    queueing: float

    def __post_init__(self) -> None:
        """Raise ValueError for parameters that no job can have."""
        for each in fields(self):
            value = getattr(self, each.name)
            top = 1.0 if each.name in ("hot", "hidden", "queueing") else np.inf
            check(
                0 <= value <= top and value < np.inf,
                f"{each.name} is {'from 0 to 1' if top == 1 else 'finite and at least 0'}, "
                f"not {value:g}",
            )
        check(
            self.own_s + self.own_record_s + self.trip_s + self.trip_record_s > 0
            or self.serve_s + self.serve_record_s > 0,
            "a round of a worker takes more than 0 s",
        )

    def throughput(self, workers: ArrayLike, servers: ArrayLike, minibatch: ArrayLike) -> Any:
        """Return records a second of all workers: a float, or a float64 array."""
        w, p, size = _places(workers, servers, minibatch)
        return plain(np.asarray(w * size / self._round(w, p, size)))

    def round_s(self, workers: ArrayLike, servers: ArrayLike, minibatch: ArrayLike) -> Any:
        """Return the seconds from one minibatch of a worker to its next."""
        return plain(np.asarray(self._round(*_places(workers, servers, minibatch))))

    def busy(self, workers: ArrayLike, servers: ArrayLike, minibatch: ArrayLike) -> Any:
        """Return the share of the time in which the hottest server is busy."""
        w, p, size = _places(workers, servers, minibatch)
        return plain(np.asarray(w * self._serve(p, size) / self._round(w, p, size)))

    def knee(self, servers: ArrayLike, minibatch: ArrayLike) -> Any:
        """Return the workers from which on the servers bound; infinite where they never do."""
        _, p, size = _places(1, servers, minibatch)
        serve, trip = self._serve(p, size), self._trip(p, size) + self._serve(p, size)
        alone, kept = self._own(np.ones(()), size), 1 - self.hidden
        found = []
        for part, rest in ((1.0, kept * trip), (kept, trip)):  # the longer of the two is the round
            slope = part * alone * self.crowding
            gains = serve - slope > _ROUNDING * (alone + trip)
            workers = (part * alone + rest - slope) / np.where(gains, serve - slope, 1.0)
            found.append(np.where(gains, workers, np.inf))
        return plain(np.maximum(np.maximum(*found), 1.0))

    def exchange_s(self, workers: ArrayLike, servers: ArrayLike, minibatch: ArrayLike) -> Any:
        """Return the seconds of a pull and a push together, the wait for others included."""
        w, p, size = _places(workers, servers, minibatch)
        took, own, serve = self._round(w, p, size), self._own(w, size), self._serve(p, size)
        met = self.queueing * (w - 1) * serve / took
        alone = self._trip(p, size) + serve / (1 - met)
        kept = 1 - self.hidden
        shorter = np.minimum((took - own) / max(kept, _ROUNDING), own)
        rest = took - kept * own  # of a round of which the exchange is the longer part
        return plain(np.where(rest > own * (1 + _ROUNDING), rest, np.maximum(alone, shorter)))

    def _own(self, w: Floats, size: Floats) -> Floats:
        return (self.own_s + self.own_record_s * size) * (1 + self.crowding * (w - 1))

    def _trip(self, p: Floats, size: Floats) -> Floats:
        return self.trip_s + self.trip_server_s * (p - 1) + self.trip_record_s * size

    def _share(self, p: Floats) -> Floats:
        return self.hot + (1 - self.hot) / p

    def _serve(self, p: Floats, size: Floats) -> Floats:
        return self.serve_s + self.serve_record_s * size * self._share(p)

    def _round(self, w: Floats, p: Floats, size: Floats) -> Floats:
        own, trip, serve = self._own(w, size), self._trip(p, size), self._serve(p, size)
        met, kept = self.queueing * (w - 1) * serve, 1 - self.hidden
        longer = np.maximum(
            _queued(own + kept * trip, kept * serve, met), _queued(kept * own + trip, serve, met)
        )
        return np.maximum(longer, w * serve)


def _queued(alone: Floats, serve: Floats, met: Floats) -> Floats:
    """Return the round for which round = alone + serve / (1 - met / round)."""
    root = np.sqrt((alone - met) ** 2 + serve**2 + 2 * serve * (alone + met))
    found: Floats = (alone + met + serve + root) / 2
    return found


def _places(
    workers: ArrayLike, servers: ArrayLike, minibatch: ArrayLike
) -> tuple[Floats, Floats, Floats]:
    places = floats(workers), floats(servers), floats(minibatch)
    for name, each in zip(("workers", "servers", "minibatch"), places, strict=True):
        check((each >= 1) & (each < np.inf), f"{name} are at least 1", **{name: each})
    return places


def fit_servers_params(points: Sequence[ServersPoint]) -> ServersParams:
    """Return the parameters that explain the points best.

    Three points that differ in workers, servers and minibatch tell of everything but the knee's
    sharpness; one is enough. What no point tells of is assumed at its best, so that a job is tried
    where it has not run yet: more workers, servers and hot rows cost nothing. (Of a time that was
    measured with one minibatch size alone, half is taken to grow with it.)

    `hidden` is, by least squares, how much shorter rounds are than their parts together. The others
    are the least squares of the relative errors of the times of a round, own work and exchange, of
    `busy` and of `share`, within their bounds.

    Raises ValueError for no point, and for one that cannot be.
    """
    from scipy.optimize import least_squares  # takes a second, which who only predicts need not

    check(len(points) > 0, "a fit needs at least one measured point")
    for point in points:
        _check_point(point)
    w, p, size, rate, data_s, compute_s, pull_s, push_s, busy, share = _columns(points)
    round_s, own_s, exchange_s = w * size / rate, data_s + compute_s, pull_s + push_s
    seen = np.log([round_s, own_s, exchange_s, busy, share])
    weights = np.where(np.isnan(seen), 0.0, np.array([[_OF_ROUND], [1], [1], [1], [1]]))
    seen = np.nan_to_num(seen)

    saved, most = (own_s + exchange_s) / round_s - 1, np.minimum(own_s, exchange_s) / round_s
    hidden = float(np.clip(saved @ most / (most @ most), 0, 1))
    own, exchange, record = own_s.mean(), exchange_s.mean(), size.mean()
    known = ~np.isnan(busy)
    serve = (busy * round_s / w)[known].mean() if known.any() else exchange / 2
    unit = np.array([own, own / record, 1, exchange, exchange, exchange / record])
    unit = np.array([*unit, serve, serve / record, 1, 1])

    def params_of(theta: Floats) -> ServersParams:
        *most, queueing = (theta * unit).tolist()
        return ServersParams(*[*most, hidden, queueing])

    def errors(theta: Floats) -> Floats:
        params = params_of(theta)
        took = params._round(w, p, size)
        told = [
            took,
            params._own(w, size),
            np.asarray(params.exchange_s(w, p, size)),
            w * params._serve(p, size) / took,
            params._share(p),
        ]
        off = (np.log(np.maximum(told, _TINY)) - seen) * weights
        return np.concatenate([off.ravel(), _PRIOR_WEIGHTS * (theta - _PRIORS)])

    top = np.array([np.inf] * 8 + [1.0] * 2)
    return params_of(least_squares(errors, _START, bounds=(0.0, top)).x)


def _check_point(point: ServersPoint) -> None:
    _places(point.workers, point.servers, point.minibatch)
    check(0 < point.records_per_s < np.inf, f"a measured throughput is above 0, not {point}")
    times = np.array([point.data_s, point.compute_s, point.pull_s, point.push_s])
    check(
        bool((times >= 0).all() and (times < np.inf).all()),
        f"the seconds of a phase are finite and at least 0, not {point}",
    )
    check(
        times[0] + times[1] > 0 and times[2] + times[3] > 0,
        f"a minibatch needs some time at its worker and some of the servers, not {point}",
    )
    check(
        point.busy is None or 0 < point.busy <= 1,
        f"the busy share of a server is above 0 and at most 1, or not measured, not {point}",
    )
    check(
        point.share is None or 1 / point.servers - 1e-6 <= point.share <= 1,
        f"the hottest of {point.servers} servers has at least an equal share, not {point}",
    )


def _columns(points: Sequence[ServersPoint]) -> list[Floats]:
    """Return a column of each field of the points, NaN where it was not measured."""
    names = [each.name for each in fields(ServersPoint)]
    return list(np.array([[getattr(p, n) for n in names] for p in points], float).T)
