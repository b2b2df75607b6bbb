"""The least mean cost on spot machines of whoever knows the weather's means, and not the future.

The world is that of benchmarks.spot with one machine, and exponential spells; each minute whoever
decides may idle, or start a machine of either market, or keep what there is. By dynamic programming
backwards from the deadline: over the minutes left, the slack, and what is at work.

    python -m benchmarks.spot_limit     from the repository root
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.spot import CHANGEOVERS_H, DEADLINES_H, HOUR_S, ON_DEMAND, SPOT, TICK_S, WORK_H
from benchmarks.spot import Floats as Costs  # (zones, minutes of slack): $ until the end
from edl.scheduler.simulator.weather import AVAILABILITIES, MEAN_UP_S

NEVER = 1e9  # $: the deadline is missed
A_TICK = TICK_S / HOUR_S


def least(deadline_h: float, changeover_h: float) -> Costs:
    """Return the least mean cost by zone, as a share of all on-demand's."""
    share = np.array(AVAILABILITIES)[:, None]
    # as the weather is seen once a minute: it may have gone and come again in between
    forgotten = 1 - np.exp(-TICK_S / MEAN_UP_S / (1 - share))
    goes, comes = (1 - share) * forgotten, share * forgotten
    ticks, slacks = round(deadline_h / A_TICK), round((deadline_h - WORK_H) / A_TICK) + 1
    changeover = round(changeover_h / A_TICK)
    done = np.zeros((len(share), slacks))
    idle, at_work = (done, done), (done, done)  # without spot machines to be had, and with
    on_demand = [(done, done)] * (changeover + 1)  # by the ticks until it works; 0: it does
    spot = [done] * (changeover + 1)

    def mean(down: Costs, up: Costs) -> tuple[Costs, Costs]:
        return (1 - comes) * down + comes * up, goes * down + (1 - goes) * up

    for tick in range(1, ticks + 1):
        has_ended = np.arange(slacks) >= tick  # all that is left is slack
        waited = tuple(_less(each) for each in mean(*idle))
        keeps = [_paid(ON_DEMAND, mean(*at_work), has_ended)]
        takes = [_paid(SPOT, (mean(idle[0], spot[0])[1],), has_ended)[0]]
        for wait in range(1, changeover + 1):
            after = mean(*(on_demand[wait - 1] if wait > 1 else at_work))
            keeps.append(_paid(ON_DEMAND, tuple(map(_less, after)), has_ended))
            after_spot = _less(mean(idle[0], spot[wait - 1])[1])
            takes.append(_paid(SPOT, (after_spot,), has_ended)[0])
        new = takes[-1], keeps[-1]
        idle = np.minimum(waited[0], new[1][0]), np.minimum.reduce([waited[1], new[1][1], new[0]])
        at_work = (
            np.minimum(keeps[0][0], waited[0]),
            np.minimum.reduce([keeps[0][1], waited[1], new[0]]),
        )
        idle, at_work = _ended(idle, has_ended), _ended(at_work, has_ended)
        on_demand, spot = keeps, takes
    cost = (1 - share[:, 0]) * idle[0][:, -1] + share[:, 0] * idle[1][:, -1]
    return np.asarray(cost / (ON_DEMAND * (WORK_H + changeover_h)))


def _less(costs: Costs) -> Costs:
    """Return the costs where a minute of slack is lost."""
    return np.concatenate([np.full_like(costs[:, :1], NEVER), costs[:, :-1]], axis=1)


def _paid(price: float, after: tuple[Costs, ...], has_ended: np.ndarray) -> tuple[Costs, ...]:
    return _ended(tuple(price * A_TICK + each for each in after), has_ended)


def _ended(costs: tuple[Costs, ...], has_ended: np.ndarray) -> tuple[Costs, ...]:
    return tuple(np.where(has_ended, 0, each) for each in costs)


if __name__ == "__main__":
    began = time.process_time()
    print(f"| | {' | '.join(f'{share:.1%}' for share in AVAILABILITIES)} | mean |")
    print("|---" * (len(AVAILABILITIES) + 2) + "|")
    for hours in DEADLINES_H:
        for changeover in CHANGEOVERS_H:
            found = least(hours, changeover)
            cells = [f"{each:.3f}" for each in (*found, found.mean())]
            print(f"| {hours:g} h, {changeover * HOUR_S:g} s | {' | '.join(cells)} |")
    print(f"\n{time.process_time() - began:.0f} s of CPU time")
