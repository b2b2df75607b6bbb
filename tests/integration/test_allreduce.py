"""Elastic all-reduce on real processes: what it ends with, and what was applied how often."""

import json
import random
import signal
import threading

import numpy as np
import pytest
from tools.groups import MINIBATCH, RECORDS, counts, job_of, scale, stopped_in_order, values
from tools.jobs import NO_RESTARTS, WAIT_S, send, write_records
from tools.servers import dense
from tools.turns import in_turn

from edl.chaos.controller import CONTINUE, OFF, Controller
from edl.data.datasets import prepare


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    """Return what one worker that nothing happens to ends with."""
    with job_of(tmp_path_factory.mktemp("fixed") / "fixed", num_workers=1, delay_s=0.0) as job:
        assert job.wait() == 0, job.logs()
    assert job.result()["version"] == 2 * RECORDS // MINIBATCH
    return values(job)


@in_turn(3)
def test_an_elastic_run_ends_as_the_fixed_one(tmp_path, fixed):
    """2 -> 4 -> 1 -> 3 members; at three moments one is killed, the first of the group as well."""
    rng = random.Random(0)
    points = ("worker.compute", "worker.commit")
    moments = {12: "worker.compute", 30: "worker.commit", 55: "worker.compute"}
    killed, scaled = [], threading.Event()

    def decide(hit):
        done = hit.about["task"] * RECORDS // 12 // MINIBATCH  # steps, about
        if done >= 0.8 * 2 * RECORDS // MINIBATCH:  # it must not end before it is scaled
            assert scaled.wait(WAIT_S)
        due = [m for m in moments if m <= done and moments[m] == hit.point]
        if due and (hit.index == 0 or rng.random() < 0.5):
            del moments[due[0]]
            killed.append((hit.point, hit.index))
            send(hit.pid, signal.SIGKILL)
        return OFF if scaled.is_set() and not moments else CONTINUE

    with (
        Controller(tmp_path / "faults", points, decide) as controller,
        job_of(tmp_path / "job", envs={"EDL_FAULTS": controller.variable}) as job,
    ):
        for share, workers in ((0.2, 4), (0.5, 1), (0.7, 3)):
            job.watch(lambda s, share=share: s["records_done"] >= share * 2 * RECORDS)
            scale(job, workers)
        scaled.set()
        assert job.wait() == 0, job.logs()

    assert len(killed) == 3
    assert any(index == 0 for _, index in killed)
    assert job.result()["version"] == 2 * RECORDS // MINIBATCH
    assert job.result()["restarts"]["worker"] == 0, "a survivor crashed"
    np.testing.assert_allclose(values(job), fixed, rtol=0, atol=2e-5)


@in_turn(2)
def test_a_step_that_some_have_applied_is_not_applied_again(tmp_path):
    """One member dies after the all-reduce, before it applies the step; another has applied it."""
    struck = []

    def decide(hit):
        if hit.index == 1 and hit.about["task"] >= 4:
            struck.append(hit)
            send(hit.pid, signal.SIGKILL)
            return OFF
        return CONTINUE if not struck else OFF

    with (
        Controller(tmp_path / "faults", ("worker.commit",), decide) as controller,
        job_of(
            tmp_path / "job", "tally", epochs=1, envs={"EDL_FAULTS": controller.variable}
        ) as job,
    ):
        assert job.wait() == 0, job.logs()

    assert struck
    assert counts(job) == [1.0] * RECORDS
    assert dense(job.checkpoint(), "steps") == RECORDS // MINIBATCH


@in_turn(1)
def test_the_master_is_killed_and_a_member_while_it_is_away(tmp_path):
    """Broken once: the new master's orders had numbers that members knew; no cut was taken."""
    with job_of(tmp_path / "job", "tally", delay_s=0.02, snapshot_s=0.2) as job:
        status = job.watch(lambda s: s["records_done"] >= 300)
        send(job.about()["pid"], signal.SIGKILL)
        send(status["workers"][1]["pid"], signal.SIGKILL)
        assert job.wait() == 0, job.logs()

    assert counts(job) == [2.0] * RECORDS
    result = job.result()
    assert (result["restarts"]["master"], result["restarts"]["worker"]) == (1, 0)


def test_all_members_are_killed_at_once(tmp_path):
    """The newest snapshot is what they begin from, and the books say what is done again."""
    with job_of(tmp_path / "job", "tally", delay_s=0.02, snapshot_s=0.3) as job:
        job.watch(lambda s: s["records_done"] >= 400)
        status = job.watch(lambda s: all(w["pid"] for w in s["workers"]))
        for worker in status["workers"]:
            send(worker["pid"], signal.SIGKILL)
        assert job.wait() == 0, job.logs()

    assert counts(job) == [2.0] * RECORDS
    told = [event["text"] for event in job.result()["events"]]
    again = [t for t in told if "computed again" in t]
    assert len(again) == 1, again
    assert "from step 0" not in again[0], again


def test_a_member_that_sleeps_past_its_lease_is_left_behind_and_comes_back(tmp_path):
    with job_of(tmp_path / "job", "tally", delay_s=0.03, lease_s=1.0) as job:
        status = job.watch(lambda s: s["records_done"] >= 200)
        assert len({w["task"] for w in status["workers"]} - {None}) == 1, "they share a task"
        pid = status["workers"][0]["pid"]
        send(pid, signal.SIGSTOP)
        job.watch(lambda s: len([w for w in s["workers"] if w["state"] == "training"]) == 1)
        done = job.last["records_done"]
        job.watch(lambda s: s["records_done"] > done + 64)
        send(pid, signal.SIGCONT)
        assert job.wait() == 0, job.logs()

    assert counts(job) == [2.0] * RECORDS


@pytest.mark.slow  # so do the next one, and the one whose minibatch follows the goodput
def test_a_run_is_stopped_and_goes_on_with_others(tmp_path):
    stopped = stopped_in_order(job_of(tmp_path / "one", "tally", delay_s=0.02))

    with job_of(
        tmp_path / "two", "tally", delay_s=0.0, num_workers=3, resume=stopped["resume"]
    ) as job:
        assert job.wait() == 0, job.logs()

    assert counts(job) == [2.0] * RECORDS
    assert job.result()["records_done"] == 2 * RECORDS


def test_servers_go_on_with_what_a_group_has_begun(tmp_path):
    """A checkpoint is one of any strategy: the books, the values and the optimizer's state."""
    with job_of(tmp_path / "one", "tally", delay_s=0.02) as job:
        job.watch(lambda s: s["records_done"] >= 300)
        send(job.about()["pid"], signal.SIGTERM)
        assert job.wait() == 130, job.logs()

    how = {"strategy": "ps", "num_workers": 1, "num_ps": 2, "use_async": True}
    with job_of(
        tmp_path / "two", "tally", delay_s=0.0, resume=job.result()["resume"], **how
    ) as job:
        assert job.wait() == 0, job.logs()

    assert counts(job) == [2.0] * RECORDS


def test_workers_that_leave_take_no_step_along(tmp_path):
    """Workers are told (SIGTERM) anywhere in a step or before the next one; no round breaks."""
    slow = {"FEED_S": "0.02"}
    with job_of(tmp_path / "job", "tally", delay_s=0.01, num_workers=3, envs=slow) as job:
        for number, records in enumerate((100, 400, 700)):
            status = job.watch(lambda s, records=records: s["records_done"] >= records)
            pids = [worker["pid"] for worker in status["workers"] if worker["pid"]]
            send(pids[number % len(pids)], signal.SIGTERM)
        assert job.wait() == 0, job.logs()

    assert counts(job) == [2.0] * RECORDS
    assert "-> broken" not in job.logs()


def test_the_last_worker_leaves_its_state_to_the_next(tmp_path):
    """The worker is preempted with a notice (SIGTERM), without snapshots: no step is done again."""
    with job_of(tmp_path / "job", "tally", delay_s=0.02, num_workers=1, snapshot_s=0) as job:
        status = job.watch(lambda s: s["records_done"] >= 200)
        send(status["workers"][0]["pid"], signal.SIGTERM)
        assert job.wait() == 0, job.logs()

    assert counts(job) == [2.0] * RECORDS
    told = [event["text"] for event in job.result()["events"]]
    (left,) = [t for t in told if "has left its state" in t]
    step = left.rpartition(" ")[2]
    saved = f"round 2: 1 workers, from step {step}, which was saved; 0 records that were done are"
    assert [t for t in told if t.startswith(saved)], told


@in_turn(1)
def test_an_evaluation_goes_on_where_a_round_breaks_in_its_midst(tmp_path):
    """One member dies while another has leased a part of the evaluation, too."""
    struck = []

    def decide(hit):
        if hit.pid in struck or len(struck) == 2:
            return CONTINUE
        struck.append(hit.pid)
        send(hit.pid, signal.SIGSTOP if len(struck) == 1 else signal.SIGKILL)
        if len(struck) == 2:  # the survivor has stayed in the midst of its part
            send(struck[0], signal.SIGCONT)
        return CONTINUE

    data = str(write_records(tmp_path / "records.npz", RECORDS))
    with (
        Controller(tmp_path / "faults", ("worker.evaluate",), decide) as controller,
        job_of(
            tmp_path / "job",
            validation_data=data,
            evaluation_steps=20,
            envs={"EDL_FAULTS": controller.variable},
        ) as job,
    ):
        assert job.wait(60) == 0, job.logs()

    result = job.result()
    assert 2 * RECORDS // MINIBATCH == result["version"]
    assert 1 == result["restarts"]["preemptions"]
    assert 96 == [e["version"] for e in result["evaluations"] if e["epoch"] == 1][-1]


def test_evaluations_see_the_state_between_two_steps(tmp_path):
    data = str(write_records(tmp_path / "records.npz", RECORDS))
    with job_of(tmp_path / "job", num_workers=3, validation_data=data, evaluation_steps=20) as job:
        assert job.wait() == 0, job.logs()

    result = job.result()
    assert [e["version"] for e in result["evaluations"] if e["epoch"] == 1][-1] == 96
    losses = [e["metrics"]["mse"] for e in result["evaluations"]]
    assert len(losses) >= 3
    assert losses[-1] < losses[0]
    assert result["restarts"] == NO_RESTARTS


def test_a_poisoned_record_is_quarantined_and_the_others_train(tmp_path):
    with job_of(
        tmp_path / "job", epochs=1, delay_s=0.0, skip_records=1, envs={"POISON": "100"}
    ) as job:
        code = job.wait()

    assert code == 3, job.logs()  # all of the span that the record is in: the feed does not say
    (quarantined,) = job.result()["quarantined"]
    assert 100 in quarantined["records"]
    assert "a poisoned record" in quarantined["error"]
    assert job.result()["records_done"] == RECORDS


# -- the minibatch follows the goodput

FLOWERS, MOST = 9216, 128  # 72 tasks of 8 minibatches of 16


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    """Write the records of Iris again and again into one file, numbered."""
    folder = tmp_path_factory.mktemp("flowers")
    made = prepare("iris", folder, echo=lambda line: None) / "train.csv"
    table = np.genfromtxt(made, delimiter=",", names=True)
    x = np.stack([table[name] for name in table.dtype.names if name != "label"], 1)
    of, path = np.arange(FLOWERS) % len(table), folder / "flowers.npz"
    label = table["label"].astype(np.int64)[of]
    np.savez(path, record=np.arange(FLOWERS), x=x.astype(np.float32)[of], label=label)
    return str(path)


def following(folder, flowers, **more):
    return job_of(
        folder,
        "stamped",
        epochs=1,
        training_data=flowers,
        model_params={"records": FLOWERS, "delay_s": 0.01},
        num_minibatches_per_task=8,
        batch_rule="adaptive",
        max_minibatch_size=MOST,
        lease_s=1.5,
        **more,
    )


def kept_minibatch(job):
    """Return the minibatch that the checkpoint holds."""
    path = job.checkpoint() / "shard-00000-of-00001.json"
    return json.loads(path.read_text())["batch"]["minibatch"]


def trains_again(worker, killed):
    return worker["pid"] not in (None, killed) and worker["state"] == "training"


@in_turn(2)
def test_the_minibatch_follows_the_goodput_through_a_kill_and_a_resume(tmp_path, flowers):
    """The minibatch has grown when a member is killed; the run is stopped, and others go on."""
    with following(tmp_path / "one", flowers, num_workers=3) as job:
        status = job.watch(lambda s: (s["minibatch"] or 0) > MINIBATCH)
        killed = status["workers"][0]["pid"]
        send(killed, signal.SIGKILL)
        job.watch(lambda s: trains_again(s["workers"][0], killed))
        send(job.about()["pid"], signal.SIGTERM)
        assert job.wait() == 130, job.logs()
    kept = kept_minibatch(job)
    resume = job.result()["resume"]
    with following(tmp_path / "two", flowers, num_workers=2, resume=resume) as job:
        assert job.wait() == 0, job.logs()

    assert kept > MINIBATCH
    assert f"round=1 -> minibatch={kept}\n" in (job.folder / "logs" / "worker-0.log").read_text()
    seen, moved = (dense(job.checkpoint(), name).astype(float) for name in ("seen", "moved"))
    assert (seen > 0).all(), "a record was not applied"
    assert (seen <= 1).all(), "a record was applied twice"
    assert job.result()["records_done"] == FLOWERS
    assert job.result()["version"] == pytest.approx(seen.sum(), rel=1e-4)
    taken = 1 / seen  # of each record, the minibatch
    factors = moved / seen / (0.05 * 16)  # and what the learning rate was multiplied by
    assert 2 * MINIBATCH - 0.5 < taken.max() < MOST + 0.5
    np.testing.assert_allclose(factors[taken < MINIBATCH + 0.5], 1, rtol=1e-4)
    grown = taken > MINIBATCH + 0.5
    assert (factors[grown] > 1.001).all()
    assert (factors[grown] < taken[grown] / MINIBATCH + 1e-3).all()
