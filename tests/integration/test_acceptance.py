"""The acceptance cases of the failure model, each over real processes.

A test's docstring says what was broken once to see it fail.
"""

import random
import shutil
import signal

import numpy as np
import pytest
import torch
from tools.jobs import NO_RESTARTS, ZOO, Job, send, write_records
from tools.servers import dense, table
from tools.stage import Stage, counts, each, edl, owner, predictions, result
from tools.turns import in_turn, some

from edl.common import storage
from edl.master.client import MasterClient
from edl.nn.initializers import initial_rows
from edl.nn.model_spec import ModelSpec, TableSpec
from edl.nn.optimizers import SGD
from edl.proto import master_pb2 as pb
from edl.ps.books.ledger import Span
from edl.ps.control import PsControl
from edl.ps.worker_client import PsClient, PushOutcome
from edl.serve.trained import load

MINIBATCH = 16


def said(status, text):
    """Tell whether an event of the status holds the text."""
    return any(text in event["text"] for event in status["events"])


def staged(folder, stage, records, **settings):
    """Make a job of tests/zoo/staged.py: tasks of 32 records in order, two workers, async."""
    return Job(
        folder / "job",
        **{
            "model_def": "staged",
            "training_data": str(write_records(folder / "records.npz", records)),
            "minibatch_size": MINIBATCH,
            "num_minibatches_per_task": 2,
            "num_workers": 2,
            "shuffle": False,
            "use_async": True,
            "lease_s": 2.0,
            "drain_grace_s": 2.0,
            "envs": stage.envs,
            **settings,
        },
    )


def test_a1_workers_killed_at_random_while_shuffling_and_reading_ahead_lose_no_record(tmp_path):
    """Broken once: (1) TaskQueue.lost takes the lost tasks for done; (2) Ledger.fence forgets what
    is applied. (A wrong position alone is mended by the ledgers: duplicates and gaps.)"""
    rng = random.Random(11)
    moments = sorted(rng.uniform(0.05, 0.8) for _ in range(4))
    job = Job(
        tmp_path / "job",
        model_def="counting",
        model_params={"delay_s": 0.02},
        training_data=str(write_records(tmp_path / "records.npz", 1500)),
        minibatch_size=MINIBATCH,
        num_epochs=2,
        num_workers=2,
        num_ps=2,
        use_async=True,
        pull_ahead=1,
        shuffle=True,
        lease_s=2.0,
    )
    killed = []

    def busy(status):
        return [w["pid"] for w in status["workers"] if w["task"] and w["pid"] not in killed]

    with job:
        for moment in moments:
            status = job.watch(
                lambda s, moment=moment: s["records_done"] >= moment * 3000 and busy(s)
            )
            killed.append(rng.choice(busy(status)))
            send(killed[-1], signal.SIGKILL)
        assert 0 == job.wait(), job.logs()

    assert 4 == job.result()["restarts"]["preemptions"]
    assert each(1500, 2) == counts(job)


def test_a2_a_task_whose_owner_is_preempted_ten_times_is_trained_and_nobody_failed(tmp_path):
    """Broken once: TaskQueue.lost counts a try, like TaskQueue.failed."""
    stage = Stage(tmp_path, 40)
    job = staged(tmp_path, stage, 64)
    killed = set()
    with job:
        while len(killed) < 10:
            status = job.watch(
                lambda s: (held := owner(s, 2)) is not None and held["pid"] not in killed
            )
            killed.add(owner(status, 2)["pid"])
            assert send(owner(status, 2)["pid"], signal.SIGKILL)
        stage.open(40)
        assert 0 == job.wait(), job.logs()

    status = job.result()
    assert {**NO_RESTARTS, "preemptions": 10} == status["restarts"]
    assert [] == status["quarantined"]
    assert each(64) == counts(job)


def test_a3_a_killed_server_moves_no_task_of_any_worker(tmp_path):
    """Broken once: Master._exited loses the members of that index whatever their role."""
    stage = Stage(tmp_path, 40, 70)
    job = staged(tmp_path, stage, 128, num_ps=2)

    def nothing_moves(status):
        """Tell whether all stands still but for the two held tasks.

        A worker that leased both held tasks reaches one of the gates only, and then all other
        records get done; else those of the first task, whose end may be told after a gate.
        """
        done = 32 if stage.reached(70) else 64
        return stage.reached(40) and status["records_done"] == done

    with job:
        before = job.watch(nothing_moves)
        send(before["servers"][1]["pid"], signal.SIGKILL)
        after = job.watch(lambda s: any("server 1 is back" in e["text"] for e in s["events"]))
        # A worker without a task may get one that is computed again for the server.
        held = {w["index"]: w["task"] for w in before["workers"] if w["task"]}
        assert held == {w["index"]: w["task"] for w in after["workers"] if w["index"] in held}
        stage.open(40, 70)
        assert 0 == job.wait(), job.logs()

    assert {**NO_RESTARTS, "server_preemptions": 1} == job.result()["restarts"]
    assert each(128) == counts(job)


def test_a4_the_task_of_the_last_busy_worker_goes_to_one_that_waits(tmp_path):
    """Broken once: GetTask answers FINISHED as soon as there is nothing to do."""
    stage = Stage(tmp_path, 40)
    job = staged(tmp_path, stage, 64, num_epochs=2)
    with job:

        def last_one_works(status):
            states = [w["state"] for w in status["workers"]]
            return stage.reached(40) and "waiting" in states and owner(status, 2)

        status = job.watch(last_one_works)
        assert 0 == status["epoch"]
        busy = owner(status, 2)["pid"]
        (waiting,) = [w["pid"] for w in status["workers"] if w["pid"] != busy]
        send(busy, signal.SIGKILL)
        job.watch(lambda s: (held := owner(s, 2)) is not None and held["pid"] == waiting)
        stage.open(40)
        assert 0 == job.wait(), job.logs()

    assert any(40 in b["records"] for b in stage.computed()[waiting])
    assert each(64, 2) == counts(job)


def test_a7_a_worker_cut_off_from_the_master_neither_leaves_nor_counts_twice(tmp_path):
    """Broken once: (1) the process ends with 0 where its incarnation is fenced; (2) Ledger.fence
    forgets what is applied and Ledger.offer takes older attempts."""
    stage = Stage(tmp_path, 10)
    network = tmp_path / "network"
    envs = {**stage.envs, "EDL_NET": str(network)}
    job = staged(tmp_path, stage, 64, num_workers=1, envs=envs)
    with job:
        before = job.watch(lambda s: stage.reached(10))
        network.write_text("worker>master:cut")
        job.watch(lambda s: said(s, "worker 0 was silent for 2 s: lost"))
        stage.open(10)  # what it computes now was leased again: servers must refuse it
        network.unlink()
        assert 0 == job.wait(), job.logs()

    status = job.result()
    pid = before["workers"][0]["pid"]
    again = [e["text"] for e in status["events"] if f"registered (pid {pid})" in e["text"]]
    assert 2 == len([text for text in again if text.startswith("worker")])
    assert NO_RESTARTS == status["restarts"]
    assert each(64) == counts(job)


def test_a8_what_a_zombie_says_after_its_lease_is_refused(tmp_path):
    """Broken once: (1) Ledger.offer takes older attempts; (2) TaskQueue._current does not look at
    who holds the task; (3) Master._get_task answers the lost."""
    stage = Stage(tmp_path, 10, 25, 80)
    # Tasks so long that nobody reads ahead into a second one.
    job = staged(tmp_path, stage, 128, num_ps=2, num_minibatches_per_task=4)
    with job:
        status = job.watch(lambda s: stage.reached(10, 80) and owner(s, 1) and owner(s, 2))
        sleeper = owner(status, 1)
        send(sleeper["pid"], signal.SIGSTOP)
        job.watch(lambda s: said(s, f"worker {sleeper['index']} was silent for 2 s: lost"))
        stage.open(80)
        job.watch(lambda s: (held := owner(s, 1)) and held["pid"] != sleeper["pid"])
        send(sleeper["pid"], signal.SIGCONT)  # it computes on in its lease that is over
        stage.open(10)
        status = job.watch(lambda s: stage.reached(25))

        addresses = [s["address"] for s in status["servers"]]
        shards = PsClient(addresses, ModelSpec((), (), SGD(1.0)), token=job.token)
        pushed = shards.push(Span(1, 1, 16, 32), [1, 1], timeout_s=10)
        shards.close()
        control = PsControl(addresses, token=job.token)
        refused = {i: d.pushes_fenced > 0 for i, d in control.describe(timeout_s=10).items()}
        control.close()
        zombie = MasterClient(
            job.client().address,
            token=job.token,
            replica=pb.Replica(
                role=pb.WORKER, index=sleeper["index"], incarnation=sleeper["incarnation"]
            ),
        )
        done = zombie.report_done(1, 1, records=64)
        handed_back = zombie.hand_back(1, 2, 0, records=0)
        outcome, fenced = zombie.get_task(0.0).outcome, zombie.heartbeat().fenced
        zombie.close()

        stage.open(25)
        assert 0 == job.wait(), job.logs()

    assert (PushOutcome.FENCED, {0: True, 1: True}) == (pushed.outcome, refused)
    assert (False, False) == (done, handed_back)
    assert (pb.GetTaskReply.FENCED, True) == (outcome, fenced)
    assert 0 == job.result()["restarts"]["preemptions"]  # the sleeper's process went on
    assert each(128) == counts(job)


def test_a12_keep_checkpoint_max_keeps_the_last_complete_ones(tmp_path):
    """Broken once: storage.prune removes nothing."""
    kept = {}
    for most in (0, 2):
        job = Job(
            tmp_path / f"keep-{most}",
            model_def="counting",
            model_params={"delay_s": 0.01},
            training_data=str(write_records(tmp_path / "records.npz", 640)),
            minibatch_size=MINIBATCH,
            num_minibatches_per_task=2,
            num_workers=1,
            checkpoint_steps=10,
            keep_checkpoint_max=most,
        )
        with job:
            assert 0 == job.wait(), job.logs()
        kept[most] = storage.find_checkpoints(job.settings.checkpoint_dir)

    assert 4 <= len(kept[0]) <= 5  # at 10, 20, 30 and 40 versions, some of them joined, and the end
    assert 2 == len(kept[2])
    assert "version-000000000040" == kept[2][-1].name == kept[0][-1].name
    assert all(storage.read_manifest(path) for paths in kept.values() for path in paths)


RECORDS = 320


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train tests/zoo/scores.py with Adam on 3 servers: 40 versions, all checkpoints kept.

    One worker in sync mode: whoever goes on from a checkpoint must end exactly here.
    """
    folder = tmp_path_factory.mktemp("trained")
    job = Job(
        folder / "job",
        model_def="scores",
        training_data=str(write_records(folder / "records.npz", RECORDS)),
        validation_data=str(write_records(folder / "validation.npz", RECORDS)),
        minibatch_size=MINIBATCH,
        num_minibatches_per_task=2,
        num_epochs=2,
        num_workers=1,
        num_ps=3,
        checkpoint_steps=15,
        seed=5,
    )
    with job:
        assert 0 == job.wait(), job.logs()
    return job


def state(checkpoint):
    """Return the rows and the dense values of tests/zoo/scores.py."""
    ids, rows = table(checkpoint, "rows")
    return rows[np.argsort(ids)], dense(checkpoint, "out.weight"), dense(checkpoint, "out.bias")


@in_turn(0)
def test_a13_a_job_goes_on_from_a_checkpoint_with_other_servers_to_the_very_same_end(
    trained, tmp_path
):
    """Broken once: snapshot.restore leaves Adam's step count out."""
    middle = storage.find_checkpoints(trained.settings.checkpoint_dir)[0]
    assert 15 <= storage.read_manifest(middle).version < 40
    settings = {
        name: getattr(trained.settings, name)
        for name in ("training_data", "validation_data", "minibatch_size", "num_epochs", "seed")
    }
    job = Job(
        tmp_path / "job",
        model_def="scores",
        num_minibatches_per_task=2,
        num_workers=1,
        num_ps=2,
        resume=str(middle),
        **settings,
    )
    with job:
        assert 0 == job.wait(), job.logs()

    assert "version-000000000040" == job.checkpoint().name
    for expected, found in zip(state(trained.checkpoint()), state(job.checkpoint()), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    ours, theirs = (j.result()["metrics"]["mse"] for j in (job, trained))
    assert pytest.approx(theirs, rel=1e-5) == ours


@in_turn(1)
def test_a15_evaluate_gives_the_metric_that_training_ended_with_on_fewer_servers(trained, tmp_path):
    """Broken once: servers do not read checkpoint_dir_for_init."""
    arguments = ["--model_def", "scores", "--model_zoo", ZOO, "--job_name", "evaluation"]
    arguments += ["--validation_data", trained.settings.validation_data, "--num_ps", 2]
    arguments += ["--checkpoint_dir_for_init", trained.settings.checkpoint_dir]

    told = edl(tmp_path, "evaluate", *arguments, "--minibatch_size", 50)

    found = result(tmp_path, "evaluation")["metrics"]["mse"]
    rows, weight, bias = state(trained.checkpoint())
    scores = rows @ weight + bias
    assert pytest.approx(np.mean((scores - np.arange(RECORDS) % 7) ** 2), rel=1e-5) == found
    assert pytest.approx(trained.result()["metrics"]["mse"], rel=1e-5) == found
    assert "mse" in told.stdout


@in_turn(2)
def test_a15_predict_writes_outputs_in_record_order_of_unseen_records_too(trained, tmp_path):
    """Broken once: DefinitionTasks.predicted names its parts without leading zeros."""
    unseen = 40
    data = write_records(tmp_path / "more.npz", RECORDS + unseen)
    arguments = ["--model_def", "scores", "--model_zoo", ZOO, "--prediction_data", data]
    arguments += ["--checkpoint_dir_for_init", trained.settings.checkpoint_dir]
    arguments += ["--output", tmp_path / "out", "--minibatch_size", 7, "--seed", 5]

    edl(tmp_path, "predict", *arguments, "--num_minibatches_per_task", 2, "--num_workers", 2)

    rows, weight, bias = state(trained.checkpoint())
    first = initial_rows(5, TableSpec("rows", 4), np.arange(RECORDS, RECORDS + unseen))
    everything = np.concatenate([rows, first])
    found = predictions(tmp_path / "out")
    np.testing.assert_allclose(found, everything @ weight + bias, rtol=1e-4, atol=1e-5)
    loaded = load(trained.checkpoint())  # docs/using.md: the same, without a job
    with torch.no_grad():
        here = loaded({"record": torch.arange(RECORDS + unseen)})
    np.testing.assert_allclose(here.numpy(), found, rtol=1e-5, atol=1e-6)


def test_a15_get_model_steps_pulls_the_dense_values_every_so_many_minibatches(tmp_path):
    """Broken once: PsTrainer._dense_due is always true."""
    stage = Stage(tmp_path)
    job = staged(tmp_path, stage, 192, num_workers=1, get_model_steps=4, pull_ahead=0)
    with job:
        assert 0 == job.wait(), job.logs()

    (batches,) = stage.computed().values()
    totals = [step // 4 * 4 * MINIBATCH for step in range(12)]
    assert totals == [batch["total"] for batch in batches]
    assert each(192) == counts(job)


@in_turn(1)
def test_a16b_a_truncated_checkpoint_is_refused_by_name_and_the_one_before_is_used(
    trained, tmp_path
):
    """Broken once: storage.read_manifest does not look at sizes and sums."""
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(trained.settings.checkpoint_dir, checkpoints)
    *_, before, newest = storage.find_checkpoints(checkpoints)
    shard = next(iter(sorted(newest.path.glob("shard-00001*.safetensors"))))
    with open(shard, "r+b") as file:
        file.truncate(shard.stat().st_size - 1)
    arguments = ["--model_def", "scores", "--model_zoo", ZOO, "--job_name", "evaluation"]
    arguments += ["--validation_data", trained.settings.validation_data]

    named = edl(tmp_path, "evaluate", *arguments, "--checkpoint_dir_for_init", newest, code=2)
    edl(tmp_path, "evaluate", *arguments, "--checkpoint_dir_for_init", checkpoints)

    assert f"{shard} is torn" in named.stderr
    (evaluation,) = result(tmp_path, "evaluation")["evaluations"]
    assert int(before.name.removeprefix("version-")) == evaluation["version"]
    log = (tmp_path / "jobs" / "evaluation" / "logs" / "server-0.log").read_text()
    assert f"{shard} is torn" in log


NO_SERVER = "give --num_ps 1 or more"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    some(
        [
            pytest.param(["--num_worker", "2"], "--num_workers", id="a mistyped flag"),
            pytest.param(["--minibatch_size", "many"], "--minibatch_size", id="no number"),
            pytest.param(["--strategy", "ps", "--num_ps_pods=0"], NO_SERVER, id="a contradiction"),
            pytest.param(["--num-ps", "0"], NO_SERVER, id="no server"),
        ]
    ),
)
def test_a18_a_mistyped_flag_or_a_contradiction_is_a_hard_error(flags, sentence, tmp_path):
    """Broken once: resolve does not check the consistency of the settings."""
    told = edl(tmp_path, "train", "--model_def", "iris", "--training_data", ZOO, *flags, code=2)

    (line,) = told.stderr.strip().splitlines()
    assert line.startswith("edl: error: ")
    assert sentence in line
    assert not (tmp_path / "jobs").exists()


@pytest.mark.slow
def test_a20_a_dense_tensor_of_300_mb_trains_spread_over_two_servers(tmp_path):
    """Not broken on purpose. Slow: the quick tests of chunks are in tests/unit/ps."""
    job = Job(
        tmp_path / "job",
        model_def="big",
        training_data=str(write_records(tmp_path / "records.npz", 32)),
        minibatch_size=MINIBATCH,
        num_workers=1,
        num_ps=2,
    )
    with job:
        assert 0 == job.wait(), job.logs()

    manifest = storage.load(job.checkpoint())
    for shard in (0, 1):
        files = [f.nbytes for f in manifest.files if f.name.startswith(f"shard-{shard:05d}")]
        assert 100e6 < sum(files) < 200e6
    assert [2.0] == np.unique(dense(job.checkpoint(), "weight")).tolist()
