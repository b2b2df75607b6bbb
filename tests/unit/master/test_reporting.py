"""The report in a job's status, out of the books and of who works."""

import pytest
from unit.master.conftest import WAIT_S

from edl.common.report import VERSION, Bounds, Phases, StepTimes, read
from edl.goodput.reported import params_of
from edl.master.recorder import Spent
from edl.proto import master_pb2 as pb

TRAINS = {"loss": 0.5}


def report_of(status):
    return read(status["report"])


def test_the_report_says_how_much_is_left_and_when_the_end_is_near(start):
    job = start([("a", 8)], num_epochs=2, overlap_epochs=True, min_workers=1)
    worker = job.worker()

    first = worker.lease()
    before = report_of(job.until(lambda s: s["tasks"]["leased"] == 1))
    worker.train(first)
    worker.done(first)
    after = report_of(job.until(lambda s: s["records_done"] == 4))
    leases = [worker.lease() for _ in range(3)]
    last = report_of(job.until(lambda s: s["tasks"]["leased"] == 3))

    assert (before.records_left, before.records_total, before.epochs) == (16, 16, 2)
    assert [(r.records_left, r.nearly_done) for r in (before, after, last)] == [
        (16, False),
        (12, False),
        (12, True),
    ]
    assert (before.version, before.workers, before.nodes) == (VERSION, Bounds(1), Bounds())
    assert (before.samples, before.model, before.priority) == ((), None, None)
    for task in leases:
        worker.train(task)
        worker.done(task)
    worker.work()
    assert (0, True) == (report_of(job.end()).records_left, report_of(job.end()).nearly_done)


@pytest.mark.parametrize(
    ("stated", "told"), [("", None), ("0.5", None), ("1", None), ("high", "high"), ("a.b", "a.b")]
)
def test_a_priority_is_a_class_and_no_fraction(start, stated, told):
    job = start(worker_pod_priority=stated)

    assert report_of(job.until(lambda s: True)).priority == told


def test_nobody_knows_what_is_left_of_a_job_without_end(start):
    job = start([("a", 8)], num_epochs=0)
    job.worker().lease()

    found = report_of(job.until(lambda s: s["tasks"]["leased"] == 1))

    assert (found.records_left, found.records_total, found.epochs) == (None, None, None)
    assert not found.nearly_done


def rise(job, workers, task, position, scalars=TRAINS):
    """Tell by heartbeats what these workers have done, and return the next status."""
    progress = [pb.Progress(task=task.id, attempt=task.attempt, position=position)]
    for worker in workers:
        worker.client.heartbeat(state="training", scalars=scalars, progress=progress)
    revision, _ = job.cli.status(0, 0.0)
    _, status = job.cli.status(revision, WAIT_S)
    assert status["records_done"] == position
    return status


@pytest.fixture
def trains(start):
    """trains(workers) -> the job, its workers and a task of the first, once all work."""

    def begin(count):
        job = start([("a", 400)], num_workers=count, num_minibatches_per_task=100, num_ps=1)
        workers = [job.worker(index) for index in range(count)]
        server = job.runtime.wait_for("server", 0)
        about = pb.Replica(role=pb.SERVER, index=0, incarnation=server.incarnation)
        job.client(about).heartbeat(state="serving")
        return job, workers, workers[0].lease()

    return begin


def test_throughput_is_sampled_while_all_train_and_the_start_has_cost_its_time(trains):
    job, workers, task = trains(2)
    for position in (2, 4, 6):  # the other one starts
        assert report_of(rise(job, workers[:1], task, position)).samples == ()

    for position in (8, 10, 12):
        found = report_of(rise(job, workers, task, position))

    (sample,) = found.samples
    assert (sample.servers, sample.workers, sample.nodes, sample.minibatch) == (1, 2, 1, 2)
    assert sample.records_per_s * sample.seconds == pytest.approx(2 * sample.looks)
    assert found.resize.workers is None
    assert found.resize.servers is not None


def test_phases_of_the_minibatches_are_told_and_two_configurations_give_a_model(trains):
    job, workers, task = trains(1)
    told = {**TRAINS, **{f"phase_{name}": 0.0 for name in Spent.__annotations__}}

    def rises(positions):
        for position in positions:
            for name, more in (("minibatches", 10), ("compute_s", 0.5), ("push_s", 0.2)):
                told[f"phase_{name}"] += more
            found = report_of(rise(job, workers, task, position, told))
        return found

    alone = rises((2, 4, 6))
    assert (alone.version, alone.servers_model) == (VERSION, None)
    (sample,) = alone.samples
    assert sample.phases == Phases(10, 0.0, pytest.approx(0.05), 0.0, pytest.approx(0.02), 1.0)
    job.cli.scale(2)
    workers.append(job.worker(1))
    rises((8, 10, 12))
    model = report_of(job.until(lambda s: s["report"]["servers_model"])).servers_model

    assert params_of(model).throughput(1, 1, 2) > 0


def test_a_change_of_the_workers_is_measured(trains):
    job, workers, task = trains(1)
    for position in (2, 4, 6):
        rise(job, workers, task, position)

    job.cli.scale(2)
    workers.append(job.worker(1))
    for position in (8, 10, 12):
        found = report_of(rise(job, workers, task, position))

    assert found.resize.workers is not None
    assert [sample.workers for sample in found.samples] == [1, 2]


def test_a_model_that_a_worker_has_fitted_is_told(start):
    job = start(
        strategy="allreduce",
        num_ps=0,
        batch_rule="adaptive",
        max_minibatch_size=8,
        local_batch_size=2,
    )
    names = StepTimes.__dataclass_fields__
    told = {f"step_{name}": float(number) for number, name in enumerate(names, 1)}
    worker = job.worker()

    worker.client.heartbeat(scalars={"minibatch": 4.0, "gain": 1.5})
    assert report_of(job.until(lambda s: s["gain"])).model is None
    worker.client.heartbeat(scalars={**told, "noise_sqr": 0.5, "noise_var": 0.25})

    model = report_of(job.until(lambda s: s["report"]["model"])).model
    assert vars(model.step) == {name: float(number) for number, name in enumerate(names, 1)}
    assert (model.noise_sqr, model.noise_var) == (0.5, 0.25)
    assert (model.initial_batch, model.largest_batch, model.local_batch) == (2, 8, 2)
