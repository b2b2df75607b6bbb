"""Pollux's own policy: valid states, by its order, and the fittest of small cases."""

import itertools
import json

import numpy as np
import pytest
from tools.traced import write_traces

from benchmarks.scheduling import __main__ as command
from benchmarks.scheduling import nsga2
from benchmarks.scheduling.pollux import Pollux
from edl.scheduler.jobs import Job, Shape
from edl.scheduler.simulator.play import cluster


def job(name, speeds=(0, 1, 1.9, 2.7, 3.4), **more):
    """Return a job of four workers at most, with a speed for each number of them."""
    given = {"worker": cluster(1, 1)[0].free, "submitted": 0.0, "maximum": 4, **more}
    return Job(name, lambda shape: float(speeds[min(shape.workers, 4)]), **given)


def test_a_job_alone_gets_what_makes_it_fastest():
    plan = Pollux(generations=8).plan([job("a")], cluster(2, 4), 600.0)

    assert plan["a"].shape.workers == 4
    assert sum(plan["a"].workers_on.values()) == 4


def test_nobody_is_given_more_than_pays():
    plan = Pollux(generations=8).plan(
        [job("a", speeds=(0, 1, 0.9, 0.8, 0.7))], cluster(2, 4), 600.0
    )

    assert plan["a"].shape == Shape(1, 0, 1)


def fitness(allocation, jobs, gpus, nodes):
    fair = min(4, -(-gpus // len(jobs)))
    scaled = [
        each.speed(Shape(n)) / each.speed(Shape(fair)) * nodes / gpus
        for each, n in zip(jobs, allocation, strict=True)
    ]
    return len(jobs) / sum(1 / (each + 1e-3) for each in scaled)


def test_jobs_share_as_the_power_mean_says():
    jobs = [job("a"), job("b", speeds=(0, 1, 1.1, 1.2, 1.3)), job("c")]

    plan = Pollux(generations=8).plan(jobs, cluster(2, 4), 600.0)

    every = [each for each in itertools.product(range(5), repeat=3) if sum(each) <= 8]
    best = max(fitness(each, jobs, 8, 2) for each in every)
    assert fitness([plan[name].shape.workers for name in "abc"], jobs, 8, 2) == pytest.approx(best)


def test_what_would_gain_less_than_its_restarts_cost_stays():
    held = {"held": Shape(2, 0, 1), "workers_on": {"node-0": 2}, "resizes": 30}
    jobs = [job("a", speeds=(0, 1, 1.9, 1.95, 2), **held)]

    assert Pollux(generations=8).plan(jobs, cluster(2, 4), 1000.0)["a"].workers_on == {"node-0": 2}
    jobs = [job("a", speeds=(0, 1, 1.9, 10, 20), **(held | {"resizes": 0}))]
    assert Pollux(generations=8).plan(jobs, cluster(2, 4), 1000.0)["a"].shape.workers == 4


def test_plans_are_valid_and_no_two_jobs_that_span_nodes_meet():
    random = np.random.default_rng(1)
    policy = Pollux(1, 8)
    nodes = cluster(4, 4)
    for now in (60.0, 120.0, 180.0):
        names = random.choice(list("abcdefgh"), 6, replace=False)
        maxima = dict(zip(names, random.integers(1, 9, 6).tolist(), strict=True))
        plan = policy.plan([job(str(n), maximum=maxima[n]) for n in names], nodes, now)

        assert set(plan) == set(names)
        for name, given in plan.items():
            assert given.shape.workers == sum(given.workers_on.values()) <= maxima[name]
            assert given.shape.nodes == len(given.workers_on)
        for node in nodes:
            there = [given for given in plan.values() if node.name in given.workers_on]
            assert sum(given.workers_on[node.name] for given in there) <= 4
            assert sum(given.shape.nodes > 1 for given in there) <= 1


def test_the_same_seed_plans_the_same():
    def planned():
        policy = Pollux(3, 8)
        jobs = [job(name) for name in "abcde"]
        return [policy.plan(jobs, cluster(2, 4), now) for now in (60.0, 120.0)]

    assert planned() == planned()


class Schaffer:
    """Schaffer's problem: x ** 2 and (x - 20) ** 2, whose front is 0 to 20."""

    def costs(self, states):
        x = states[:, 0].astype(float)
        return np.stack([x**2, (x - 20) ** 2], axis=1)

    def cross(self, first, second, random):
        return np.concatenate([first, second])

    def mutate(self, states, random):
        return (states + random.integers(-3, 4, states.shape)).astype(np.int16)

    def repair(self, states, random):
        return np.clip(states, -1000, 1000)


def test_the_search_finds_the_front_of_a_known_problem():
    begin = np.array([[40]], np.int16)

    front = nsga2.search(Schaffer(), begin, 40, 40, np.random.default_rng(0))

    assert sorted(front.states[:, 0].tolist()) == list(range(21))


def test_the_command_prints_a_table_beside_what_was_published(tmp_path, capsys):
    write_traces(tmp_path / "traces" / "toy")
    (tmp_path / "workloads").mkdir()
    text = "name,time,application\na,0,toy\nb,70,toy\n"
    (tmp_path / "workloads/workload-3.csv").write_text(text)
    jcts = {"jcts": {"workload-3": {"a": 1000, "b": 2000}}}
    (tmp_path / "results-pollux-1.0.json").write_text(json.dumps(jcts))
    plots = tmp_path / "plots"

    command.main(
        ["--data", str(tmp_path), "--workload", "3", "--policy", "goodput", "--plots", str(plots)]
    )

    _, _, published, ours = capsys.readouterr().out.splitlines()
    assert published == "| 3 | published | 1,500 | 1,500 | 1,990 | 2,070 |  |  |  |  |"
    cells = ours.split(" | ")
    assert cells[:2] == ["| 3", "goodput"]
    assert 60 + 30 + 200 * 0.6 < float(cells[2]) < 300
    assert sorted(path.name for path in plots.iterdir()) == [
        "workload-3-gpus.svg",
        "workload-3-jct.svg",
    ]
