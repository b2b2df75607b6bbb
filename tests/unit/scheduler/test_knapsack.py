"""The choice of options is the best there is: as brute force and the solver of programs find it."""

import itertools
import math

import numpy as np
import pytest

from edl.scheduler import knapsack, milp
from edl.scheduler.knapsack import Problem, whole


def sums(problem: Problem, picks: tuple[int, ...] | list[int]) -> tuple[bool, int]:
    """Return whether the picks fit together, and what they add up to."""
    taken = sum(rows[pick] for rows, pick in zip(problem.amounts, picks, strict=True))
    value = sum(int(each[pick]) for each, pick in zip(problem.values, picks, strict=True))
    return bool((taken <= problem.limits + 1e-9).all()), value


def brute(problem: Problem) -> int:
    found = (
        sums(problem, picks)
        for picks in itertools.product(*(range(len(v)) for v in problem.values))
    )
    return max(value for fits, value in found if fits)


def random_problem(dice: np.random.Generator, quotas: int = 0, sure: bool = False) -> Problem:
    """Return a few jobs of a few options, whose amounts are of one resource, with quotas on some.

    `sure`: of some jobs nothing is no option, yet their least options fit together.
    """
    jobs = int(dice.integers(1, 5))
    group = dice.integers(0, quotas + 1, jobs)
    unit = dice.choice([1.0, 0.5, 2.0, 0.1])
    values, amounts = [], []
    for j in range(jobs):
        size = int(dice.integers(1, 5))
        takes = np.append(0, np.sort(dice.integers(0, 9, size - 1))) * unit
        rows = np.zeros((size, 1 + quotas))
        rows[:, 0] = takes
        if group[j]:
            rows[:, group[j]] = takes
        first = int(sure and size > 1 and dice.random() < 0.5)
        values.append(np.append(0.0, dice.normal(size=size - 1).round(2))[first:])
        amounts.append(rows[first:])
    limits = dice.integers(0, 20, 1 + quotas) * unit
    least = np.array([rows[0] for rows in amounts]).sum(axis=0)
    return Problem(whole(values, [None] * jobs), amounts, np.maximum(limits, least))


@pytest.mark.parametrize(("quotas", "sure"), [(0, False), (0, True), (2, False), (2, True)])
def test_dynamic_programming_finds_what_brute_force_finds(quotas: int, sure: bool) -> None:
    dice = np.random.default_rng(quotas + sure)
    for _ in range(1500):
        problem = random_problem(dice, quotas, sure)

        picks = knapsack.solve(problem)

        assert picks is not None
        assert (True, brute(problem)) == sums(problem, picks)


def test_the_solver_of_programs_finds_what_dynamic_programming_finds() -> None:
    dice = np.random.default_rng(5)
    for _ in range(60):
        problem = random_problem(dice, 2)

        picks, exact = milp.solve(problem, 10.0), knapsack.solve(problem)

        assert picks is not None
        assert exact is not None
        fits, value = sums(problem, picks)
        assert fits
        assert math.isclose(value, sums(problem, exact)[1], rel_tol=1e-5)


def test_the_solver_of_programs_finds_what_brute_force_finds_of_several_amounts() -> None:
    dice = np.random.default_rng(6)
    left_to_it = 0
    for _ in range(80):
        problem = random_problem(dice)
        amounts = [
            np.hstack([rows, dice.integers(0, 9, rows.shape) * (rows > 0)])
            for rows in problem.amounts
        ]
        both = Problem(problem.values, amounts, np.append(problem.limits, 9))
        picks = milp.solve(both, 10.0)
        exact = knapsack.solve(both)
        left_to_it += exact is None

        assert picks is not None
        fits, value = sums(both, picks)
        assert fits
        assert math.isclose(value, brute(both), rel_tol=1e-5)
        assert exact is None or (True, brute(both)) == sums(both, exact)
    assert left_to_it > 10


def test_amounts_that_follow_from_one_another_are_left_to_dynamic_programming() -> None:
    """Four cores a GPU, on nodes with eight: whatever has a GPU has its cores."""
    rows = np.outer(np.arange(3), [1.0, 4.0])
    problem = Problem([np.array([0, 1, 3])] * 3, [rows] * 3, np.array([4.0, 32.0]))

    assert [0, 2, 2] == sorted(knapsack.solve(problem) or [])
    tight = Problem(problem.values, [rows] * 3, np.array([4.0, 15.0]))
    assert [0, 1, 2] == sorted(knapsack.solve(tight) or [])


def test_of_equal_plans_the_one_is_taken_that_changes_fewer_jobs() -> None:
    values = [np.array([0.0, 1.0, 2.0])] * 3
    rows = np.arange(3.0)[:, None]
    for kept in ([1, 2, 0], [2, 1, 0], [2, 0, 1], [0, 1, 2]):
        problem = Problem(whole(values, kept), [rows] * 3, np.array([3.0]))

        assert kept == knapsack.solve(problem)


def test_of_equal_options_the_smaller_is_taken() -> None:
    values = [np.array([0.0, 1.0, 1.0]), np.array([0.0, 0.0])]
    amounts = [np.array([[0.0], [2.0], [3.0]]), np.array([[0.0], [1.0]])]

    for limit in (3.0, 9.0):
        assert [1, 0] == knapsack.solve(
            Problem(whole(values, [None] * 2), amounts, np.array([limit]))
        )


def test_an_amount_that_no_unit_counts_is_left_to_the_solver_of_programs() -> None:
    rows = np.array([[0.0], [math.pi], [4.0]])
    problem = Problem([np.array([0, 1, 2])] * 2, [rows] * 2, np.array([7.5]))

    assert knapsack.solve(problem) is None
    assert [1, 2] == sorted(milp.solve(problem, 10.0) or [])


def test_values_of_very_many_jobs_add_up_without_overflow() -> None:
    jobs = 5000
    values = whole([np.array([-1000.0, -0.5, -0.25])] * jobs, [1] * jobs)
    rows = np.arange(3.0)[:, None]

    picks = knapsack.solve(Problem(values, [rows] * jobs, np.array([60.0])))

    assert picks is not None
    assert 60 == sum(picks)
    assert 60 == sum(pick > 0 for pick in picks)
