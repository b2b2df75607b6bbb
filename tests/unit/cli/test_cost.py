"""`edl cost`, of jobs whose status stands in a folder."""

import json

import pytest

from edl.cli.main import run

USAGE = {
    "records": 2_000_000,
    "machines": [
        {"name": "m", "useful_s": 2700, "recompute_s": 300.0, "idle_s": 400.0, "start_s": 200.0}
    ],
}


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """Return jobs(name, status): a job that ended with it."""
    monkeypatch.setenv("EDL_HOME", str(tmp_path))

    def make(name, **status):
        folder = tmp_path / "jobs" / name
        folder.mkdir(parents=True)
        (folder / "settings.json").write_text("{}")
        (folder / "result.json").write_text(json.dumps({"job_name": name, **status}))

    return make


@pytest.fixture
def prices(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("here: {on-demand: 2.0}\nelsewhere: {on-demand: 1, spot: 0.5}\n")
    return str(path)


def test_the_cost_of_a_job_as_json(jobs, prices, capsys):
    jobs("one", usage=USAGE, restarts={"preemptions": 3, "server_preemptions": 1, "worker": 7})

    assert run(["cost", "one", "--prices", prices, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)

    assert told["machine_s"] == {"on-demand": 3600, "spot": 0}
    assert (told["useful_s"], told["wasted_s"], told["recompute_s"]) == (2700, 900, 300)
    assert (told["dollars"], told["dollars_per_million"], told["saved"]) == (2.0, 1.0, 0.0)
    assert told["taken_away"] == 4
    assert told["kinds"] == [{"kind": "here", "market": "on-demand", "machine_s": 3600}]


def test_all_jobs_and_their_sum_in_a_table(jobs, prices, capsys):
    jobs("one", usage=USAGE)
    jobs("two", usage=USAGE)
    jobs("old")

    assert run(["cost", "--all", "--prices", prices]) == 0
    told = capsys.readouterr()

    assert "left out: Job 'old' tells no machine-seconds" in told.err
    rows = {line.split()[0]: line.split()[1:] for line in told.out.splitlines()[1:]}
    assert rows["two"] == ["3,600", "0", "2,700", "900", "(25%)", "0", "2", "1", "0"]
    assert rows["all"] == ["7,200", "0", "5,400", "1,800", "(25%)", "0", "4", "1", "0"]


@pytest.mark.parametrize(
    ("status", "table", "said"),
    [
        ({}, "here: {on-demand: 1}", "Job 'one' tells no machine-seconds: it has not begun"),
        ({"usage": {"records": 1}}, "here: {on-demand: 1}", "has no field 'machines'"),
        ({"usage": USAGE}, "hre: {on-demand: 1}", "here is missing; did hre mean it?"),
        ({"usage": USAGE}, "m5: {on-demand: 1}", "here is missing: give `here:` and its price."),
        ({"usage": USAGE}, "here: {spot: 1}", "here.on-demand is missing"),
        ({"usage": USAGE}, "here: [", "is not YAML"),
    ],
)
def test_what_cannot_be_told_is_one_sentence(jobs, prices, capsys, status, table, said):
    jobs("one", **status)
    with open(prices, "w") as file:
        file.write(table)

    assert run(["cost", "one", "--prices", prices]) in (1, 2)
    told = capsys.readouterr()

    assert said in told.err
    assert len(told.err.splitlines()) == 1


def test_a_name_and_all_jobs_exclude_each_other(jobs, prices, capsys):
    assert run(["cost", "one", "--all", "--prices", prices]) == 2
    assert "--all is of all jobs" in capsys.readouterr().err
