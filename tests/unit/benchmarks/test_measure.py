"""Figures: CPU clocks of processes, alternation, medians with their spread."""

import os
import subprocess
import sys
import time

import pytest

from benchmarks.measure import Sample, alternate, cpu_s, more, sample, spread, table


def burn(cpu_seconds):
    until = time.process_time() + cpu_seconds
    while time.process_time() < until:
        pass


def test_the_cpu_time_of_a_process_is_the_kernels():
    before, own = cpu_s([os.getpid()]), time.process_time()
    burn(0.02)
    assert time.process_time() - own == pytest.approx(cpu_s([os.getpid()]) - before, abs=0.01)


BURN = """
import time
input()
while time.process_time() < 0.5:
    pass
print("done", flush=True)
input()
"""


def test_the_cpu_time_of_another_process_counts():
    command = [sys.executable, "-c", BURN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:

        def work():
            other.stdin.write(b"go\n")
            other.stdin.flush()
            other.stdout.readline()

        used = sample(1, work, [other.pid]).cpu_s
        other.communicate(b"end\n")

    assert used > 0.3  # of the other's 0.5 s some went into its start


def test_each_variant_runs_once_a_round_and_the_first_one_changes():
    calls = []

    def variant(name):
        return lambda: calls.append(name) or Sample(1, len(calls), 1)

    found = alternate({name: variant(name) for name in "abc"}, rounds=3)

    assert "".join(calls) == "cab" + "abc" + "bca" + "cab"
    assert [s.wall_s for s in found["a"]] == [4, 9, 11]  # the warm-up was dropped


def test_a_ratio_is_taken_within_a_round():
    found = {
        "base": [Sample(10, 1, 1), Sample(10, 10, 1), Sample(10, 2, 1)],
        "other": [Sample(10, 2, 3), Sample(10, 20, 3), Sample(10, 1, 4)],
    }

    rows = table(found, ["base"], ("k/s", 1e-3), ("ms", 1e3)).splitlines()

    assert "|  | k/s | of base | ms | times base |" == rows[0]
    assert "| base | 0.005 (0.001-0.01) | 1 | 100 (100-100) | 1 |" == rows[2]
    assert "| other | 0.005 (0.0005-0.01) | 0.5 (0.5-2) | 300 (300-400) | 3 (3-4) |" == rows[3]


def test_large_figures_have_no_exponent():
    assert "12,346 (999-123,457)" == spread([12345.6, 999.0, 123456.7])


def test_what_costs_more_is_told_by_the_median_its_interval_and_the_quartiles():
    """Of the groups of ratios +1 +2 +3, +5 +5 +5 % the same one may be drawn twice."""
    mine, theirs = [[1.01, 2.04, 3.09], [1.05, 1.05, 1.05]], [[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]]

    assert "+4.0 % [+2.0, +5.0] (+2.3, +5.0)" == more(mine, theirs)
