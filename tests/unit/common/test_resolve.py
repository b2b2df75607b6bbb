"""Settings from what a user said: names, bounds, contradictions, the outside (A18)."""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.stores import world

from edl.common import claims, paths, storage
from edl.common.errors import UsageError
from edl.common.places import Place
from edl.common.resolve import resolve
from edl.common.settings import JobSettings

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "train.csv"
    path.write_text("a\n1\n")
    return str(path)


ADAPTIVE = {"strategy": "allreduce", "batch_rule": "adaptive", "max_minibatch_size": 512}


@pytest.fixture
def checkpoints(tmp_path: Path) -> str:
    folder = tmp_path / "checkpoints"
    directory = storage.version_directory(folder, 7)
    directory.mkdir(parents=True)
    storage.write_manifest(directory, version=7, num_shards=1, num_slots=4, files=[], model={})
    return str(folder)


def train(data: str, **values: Any) -> JobSettings:
    return resolve("train", {"model_def": "iris", "training_data": data, **values})


def test_values_are_typed_and_the_rest_are_defaults(data: str) -> None:
    settings = train(data, num_workers="3", shuffle="no", model_params="dim=8", seed=5)

    assert settings == JobSettings(
        command="train",
        job_name=settings.job_name,
        model_def="iris",
        training_data=data,
        num_workers=3,
        shuffle=False,
        model_params={"dim": 8},
        seed=5,
    )


def test_minibatch_that_follows_the_goodput_needs_its_bound_only(data: str) -> None:
    assert 512 == train(data, **ADAPTIVE).max_minibatch_size


@pytest.mark.parametrize(
    "given", ["jsonl,tensorboard", ("JSONL", "tensorboard"), ["jsonl, tensorboard", "jsonl"]]
)
@pytest.mark.parametrize("name", ["logger", "loggers"])
def test_several_loggers_are_given_with_commas_or_one_by_one(
    data: str, name: str, given: object
) -> None:
    settings = train(data, job_name="demo", **{name: given})

    assert ("jsonl", "tensorboard") == settings.loggers
    assert re.fullmatch(r"demo-[0-9a-f]{8}", settings.run)
    assert ("", "") == (train(data, logger="").logger, train(data).run)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"logger": "mlflo"}, "--logger is one of wandb, .*, not 'mlflo'; did you mean 'mlflow'?"),
        (
            {"logger": "jsonl,wandb"},
            "--logger wandb needs wandb, which .* run `pip install '..wandb.'`",
        ),
        (
            {"logger": "jsonl", "runtime": "kubernetes", "image": "mine"},
            "--logger is of jobs on this machine, .*: leave it out",
        ),
    ],
)
def test_loggers_that_cannot_be_are_one_sentence(
    data: str, given: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    with pytest.raises(UsageError, match=sentence):
        train(data, **given)


def test_other_names_mean_the_same(data: str) -> None:
    settings = train(data, num_ps_pods="2", batch_size="32", epochs="4", max_step="9")

    assert (2, 32, 4, 9) == (
        settings.num_ps,
        settings.minibatch_size,
        settings.num_epochs,
        settings.max_steps,
    )


def test_choice_is_taken_in_any_case_and_in_elasticdl_words(data: str) -> None:
    settings = train(data, log_level="INFO", distribution_strategy="ParameterServerStrategy")

    assert ("info", "ps") == (settings.log_level, settings.strategy)


def test_job_name_is_made_up_from_the_definition(data: str) -> None:
    assert re.fullmatch(r"iris-\d{4}-\d{6}-[0-9a-f]{2}", train(data).job_name)


def test_local_paths_become_absolute(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(data).parent)

    settings = train("train.csv", output="out", validation_data="s3://bucket/x.csv")

    assert (data, str(Path(data).parent / "out"), "s3://bucket/x.csv") == (
        settings.training_data,
        settings.output,
        settings.validation_data,
    )


def test_list_and_glob_of_data_are_taken(data: str) -> None:
    glob = str(Path(data).parent / "*.csv")

    assert f"{data},{glob}" == train(f"{data}, {glob}").training_data


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"num_ps": 0}, "--num_ps is 0: give --num_ps 1 or more"),
        ({"use_async": True, "grads_to_wait": 4}, "--grads_to_wait 4 waits for several: leave out"),
        ({"lr_staleness_modulation": True}, "no effect in sync mode.*add --use_async"),
        ({"get_model_steps": 2}, "sync mode refuses: add --use_async"),
        ({"pull_ahead": 2}, "--pull_ahead is 0 or 1"),
        ({"push_window": 2}, "--push_window 2 has no effect without --pull_ahead 1"),
        ({"push_window": 0}, "--push_window is at least 1"),
        ({"gradient_wire": "int8", "transport": "grpc"}, "saves no bytes over --transport grpc"),
        ({"num_epochs": -1}, "--num_epochs is at least 0, not -1"),
        ({"num_epochs": 0}, "--num_epochs 0 trains without end: say how many, or give --max_steps"),
        ({"hang_s": "inf"}, "--hang_s is a time in seconds; 0: nothing counts as a hang"),
        ({"lease_s": -1}, "--lease_s is at least 0"),
        ({"lease_s": 0}, "--lease_s is a time in seconds above 0"),
        ({"teachers": "h:1,h"}, "--teachers: 'h' is no HOST:PORT"),
        ({"teachers": "kserve+http://h:1"}, "'kserve.http://h:1' is no kserve.http://HOST:PORT/MO"),
        ({"lease_s": "nan"}, "--lease_s is at least 0, not nan"),
        ({"master_timeout_s": "inf"}, "--master_timeout_s is a time in seconds above 0"),
        ({"minibatch_size": 0}, "--minibatch_size is at least 1, not 0"),
        ({"num_workers": 0}, "--num_workers is at least 1"),
        ({"task_fault_tolerance": 0}, "--task_fault_tolerance is at least 1"),
        ({"port": 70000}, "--port is at most 65535"),
        (
            {"keep_last": False, "checkpoint_dir": "/c"},
            "nothing would be written to --checkpoint_dir",
        ),
        ({"output": "s3://b/c"}, "--output is a folder, not a URL"),
        ({"checkpoint_dir": "nosuch://b/c"}, "--checkpoint_dir: nosuch://b/c cannot be opened"),
        ({"output": "/proc/x"}, r"--output: /proc cannot be written \(No such file"),
        ({"checkpoint_dir": "/proc/x"}, "--checkpoint_dir: /proc cannot be written"),
        ({"snapshot_dir": "/proc/x"}, "--snapshot_dir: /proc cannot be written"),
        ({"keep_best": "auc"}, "--keep_best goes by the evaluations.*give --validation_data"),
        ({"keep_best": "auc:2"}, r"--keep_best is METRIC\[:min|max\], not 'auc:2'"),
        ({"keep_best": ":min"}, "--keep_best names no metric"),
        (
            {"early_stopping": "auc:0"},
            "--early_stopping is METRIC.*'0' is no number of evaluations",
        ),
        ({"early_stopping": "auc:best"}, "'best' is no number of evaluations, nor min or max"),
        (
            {"prediction_data": "/p.csv"},
            "--prediction_data is of `edl predict`, not of `edl train`",
        ),
        ({"evaluation_steps": 5}, "give --validation_data as well"),
        ({"model_def": ""}, "No --model_def: name a definition"),
        ({"model_def": "", "checkpoint_dir_for_init": "a"}, "`edl checkpoint show .*a` tells"),
        ({"model_def": "/no/such.py"}, "--model_def: there is no file /no/such.py"),
        ({"model_zoo": "/no/such/zoo"}, "--model_zoo: /no/such/zoo is no folder"),
        ({"training_data": ""}, "`edl train` needs --training_data"),
        ({"training_data": "/no/such.csv"}, "there is no file or folder /no/such.csv"),
        ({"validation_data": "/no/*.csv"}, r"no file matches /no/\*.csv"),
        ({"checkpoint_dir_for_init": "/no/such"}, "no complete checkpoint.*Name a folder"),
        ({"job_name": "My Job!"}, "not 'My Job!'; 'my-job' would do"),
        ({"job_name": "x" * 51}, "at most 50"),
        ({"job_name": "../up"}, "lower-case letters"),
        ({"strategy": "ring"}, "--strategy is one of ps, allreduce, hybrid, not 'ring'"),
        ({"strategy": "allreduce", "use_async": True}, "--use_async is about pushes to servers"),
        ({"strategy": "allreduce", "pull_ahead": 1}, "--pull_ahead is about pushes to servers"),
        ({"strategy": "hybrid", "push_window": 2}, "--push_window is about pushes to servers"),
        ({"strategy": "hybrid", "batch_rule": "linear"}, "--batch_rule is about a learning rate"),
        ({"strategy": "hybrid", "num_ps": 0}, "--strategy hybrid keeps parameters on servers"),
        ({"local_batch_size": 8}, "--local_batch_size is about minibatches of all workers"),
        ({"fully_shard": True}, "--fully_shard is about minibatches of all workers"),
        (
            {"strategy": "allreduce", "fully_shard": True, "compile": True},
            "--fully_shard shards the model module by module, and --compile makes one piece of it",
        ),
        (
            {"strategy": "hybrid", "precision": "fp16"},
            "--precision fp16 scales.*give --precision b",
        ),
        ({**ADAPTIVE, "precision": "fp16"}, "--batch_rule adaptive takes them as they are"),
        ({"precision": "half"}, "--precision is one of float32, bf16, fp16, not 'half'"),
        ({"batch_rule": "linear"}, "--batch_rule is about minibatches of all workers"),
        ({"max_minibatch_size": 99}, "--max_minibatch_size is about minibatches of all workers"),
        ({**ADAPTIVE, "strategy": "ps"}, "--batch_rule is about minibatches of all workers"),
        (
            {**ADAPTIVE, "batch_rule": "linear"},
            "is the bound of --batch_rule adaptive, not of .*lin",
        ),
        ({**ADAPTIVE, "max_minibatch_size": 0}, "say with --max_minibatch_size how far"),
        (
            {**ADAPTIVE, "max_minibatch_size": 63},
            "--max_minibatch_size 63 is below --minibatch_size",
        ),
        ({**ADAPTIVE, "max_minibatch_size": 513}, "give --num_minibatches_per_task 9 or more"),
        (
            {**ADAPTIVE, "lr_warmup_steps": 5},
            "--lr_warmup_steps has no effect with --batch_rule ada",
        ),
        ({**ADAPTIVE, "batch_rule": "adaptiv"}, "did you mean 'adaptive'"),
        ({"device": "cudaa"}, "did you mean 'cuda'"),
        ({"num_worker": 3}, "no setting --num_worker; did you mean --num_workers"),
        ({"envs": "1A=2"}, "'1A' is no name of an environment variable"),
    ],
)
def test_contradiction_is_one_sentence_that_says_what_to_do(
    data: str, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        train(data, **values)


@pytest.mark.parametrize(
    ("command", "given", "missing"),
    [
        ("evaluate", "checkpoint_dir_for_init", "validation_data"),
        ("evaluate", "validation_data", "checkpoint_dir_for_init"),
        ("predict", "checkpoint_dir_for_init", "prediction_data"),
        ("predict", "prediction_data", "checkpoint_dir_for_init"),
    ],
)
def test_command_without_its_data_or_checkpoint_is_refused(
    command: str, given: str, missing: str, data: str, checkpoints: str
) -> None:
    value = checkpoints if given == "checkpoint_dir_for_init" else data

    with pytest.raises(UsageError, match=f"`edl {command}` needs --{missing}"):
        resolve(command, {"model_def": "iris", given: value})


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_checkpoint_says_its_definition_unless_one_is_given(
    command: str, data: str, checkpoints: str
) -> None:
    params: dict[str, Any] = {"model_params": {"hidden": 8}, "data_reader_params": {"sep": "tab"}}
    _checkpoint_of(train(data, num_ps=5, minibatch_size=9, **params), checkpoints)
    own = "validation_data" if command == "evaluate" else "prediction_data"
    said = {own: data, "checkpoint_dir_for_init": checkpoints}

    taken = resolve(command, said)
    asked = resolve(command, {**said, "model_params": "hidden=4"})
    another = resolve(command, {**said, "model_def": "deepfm"})

    assert ("iris", params) == (taken.model_def, {n: getattr(taken, n) for n in params})
    assert (1, 64) == (taken.num_ps, taken.minibatch_size)
    assert ("iris", {"hidden": 4}) == (asked.model_def, asked.model_params)
    assert ("deepfm", {}) == (another.model_def, another.model_params)


def test_a_checkpoint_that_tells_no_definition_needs_one(data: str, checkpoints: str) -> None:
    said = {"validation_data": data, "checkpoint_dir_for_init": checkpoints}

    with pytest.raises(UsageError, match="No --model_def: name a definition"):
        resolve("evaluate", said)
    with pytest.raises(UsageError, match="`edl evaluate` needs --checkpoint_dir_for_init"):
        resolve("evaluate", {"validation_data": data})
    with pytest.raises(UsageError, match="--checkpoint_dir_for_init: .* in /no/such"):
        resolve("evaluate", {**said, "checkpoint_dir_for_init": "/no/such"})


def test_folder_of_checkpoints_and_one_of_them_are_taken(data: str, checkpoints: str) -> None:
    one = str(storage.version_directory(checkpoints, 7))

    taken = [train(data, checkpoint_dir_for_init=path) for path in (checkpoints, one)]

    assert [checkpoints, one] == [settings.checkpoint_dir_for_init for settings in taken]


def test_folder_below_a_file_cannot_be_written(data: str) -> None:
    with pytest.raises(UsageError, match=f"--output: {data} is a file"):
        train(data, output=f"{data}/out")


def test_folder_without_permission_cannot_be_written(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Patched, since root may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)

    with pytest.raises(UsageError, match=f"{tmp_path} cannot be written: choose another"):
        train(data, checkpoint_dir=str(tmp_path / "new" / "x"))


def test_name_of_a_running_job_is_refused(data: str) -> None:
    _, lock = paths.claim("census")

    with pytest.raises(UsageError, match="'census' is running already: choose another name"):
        train(data, job_name="census")

    os.close(lock)


def test_error_says_where_the_value_stands(data: str) -> None:
    values = {"model_def": "iris", "training_data": data, "num_ps": 0}

    with pytest.raises(UsageError, match=r"but --num_ps \(job.yaml:3\) is 0"):
        resolve("train", values, {"num_ps": "job.yaml:3"})


# -- going on


@pytest.fixture
def resumable(data: str, checkpoints: str) -> Path:
    """Leave a checkpoint of a run with settings of its own."""
    before = train(data, job_name="demo", num_workers=5, minibatch_size=32, use_async=True)
    return _checkpoint_of(before, checkpoints)


def _checkpoint_of(before: JobSettings, checkpoints: str) -> Path:
    directory = storage.version_directory(checkpoints, 8)
    books = {"settings": {**dataclasses.asdict(before), "checkpoint_dir": checkpoints}}
    directory.mkdir()
    about = {"version": 8, "num_shards": 1, "num_slots": 4, "files": [], "model": {}}
    storage.write_manifest(directory, **about, books=books)
    return directory


def test_settings_come_with_a_checkpoint_and_flags_win(resumable: Path, data: str) -> None:
    settings = resolve("train", {"resume": str(resumable), "num_workers": "2", "num_ps": 3})

    expected = train(
        data,
        job_name="demo-r1",
        num_workers=2,
        num_ps=3,
        minibatch_size=32,
        use_async=True,
        checkpoint_dir=str(resumable.parent / "new"),
    )
    places = {"resume": str(resumable), "checkpoint_dir": str(resumable.parent)}
    assert dataclasses.replace(expected, **places) == settings


def test_newest_checkpoint_of_a_folder_or_of_a_job_is_gone_on_with(
    resumable: Path, tmp_path: Path
) -> None:
    for name, folder in [("a", str(resumable.parent)), ("b", "")]:
        job = paths.job_folder(name)
        job.mkdir(parents=True)
        (job / "settings.json").write_text(json.dumps({"checkpoint_dir": folder}))
    shutil.copytree(resumable.parent, paths.job_folder("b") / "checkpoints")

    given = [resumable.parent, paths.job_folder("a"), paths.job_folder("b")]
    new = str(tmp_path / "new")
    taken = [
        resolve("train", {"resume": str(path), "checkpoint_dir": new}).resume for path in given
    ]

    inside = paths.job_folder("b") / "checkpoints" / resumable.name
    assert [str(resumable), str(resumable), str(inside)] == taken
    with pytest.raises(UsageError, match="lies in the folder of a job of that name"):
        resolve("train", {"resume": str(inside), "job_name": "b"})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"resume": "/no/such"}, "no complete checkpoint in /no/such.*the folder of a job"),
        ({"checkpoint_dir_for_init": "/x"}, "leave out one of them"),
    ],
)
def test_what_cannot_be_gone_on_with_is_told(
    values: dict[str, Any], sentence: str, resumable: Path
) -> None:
    with pytest.raises(UsageError, match=sentence):
        resolve("train", {"resume": str(resumable), **values})


def test_a_job_that_never_began_is_told_of_as_that() -> None:
    """Broken once: who gave a job's folder was told to give a job's folder."""
    folder = paths.job_folder("young")
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text("{}")
    (folder / "describe.json").write_text("{}")

    with pytest.raises(UsageError, match=f"--resume: the job in {folder} never began, or is over"):
        resolve("train", {"resume": str(folder)})
    lock = paths.lock(folder)
    with pytest.raises(UsageError, match=f"the job in {folder} runs, and has"):
        resolve("train", {"resume": str(folder)})
    os.close(lock)


def claim(folder: Path, *places: str) -> None:
    """Have the job in a folder claim these, as its master does."""
    me = claims.Holder.of_job(f"{folder.name}-1", folder.name, folder.name, folder)
    for place in places:
        claims.Claim(Place(place), me).take()


@pytest.fixture
def runs() -> Iterator[Callable[..., Path]]:
    """Return runs(settings) -> the folder of the job `first`, which has these and is running."""
    locks = []

    def run(home: str = "", **told: str) -> Path:
        before = os.environ["EDL_HOME"]
        os.environ["EDL_HOME"] = home or before
        try:
            folder, lock = paths.claim("first")
        finally:
            os.environ["EDL_HOME"] = before
        locks.append(lock)
        claim(folder, *claims.folders(told).values())
        return folder

    yield run
    for lock in locks:
        os.close(lock)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("checkpoint_dir", "train"),
        ("delta_dir", "train"),
        ("output", "train"),
        ("output", "predict"),
    ],
)
def test_a_folder_to_which_a_running_job_writes_is_refused(
    data: str, tmp_path: Path, runs: Callable[..., Path], name: str, command: str
) -> None:
    """Broken once: of two jobs with one folder each removed what the other had written."""
    there = tmp_path / "there"
    runs(command=command, **{name: str(there)})

    with pytest.raises(UsageError, match=f"--{name}: the job 'first', which is running, writes"):
        train(data, **{name: f"{there}/"})
    train(data, **{name: str(tmp_path / "elsewhere")})


def test_a_job_of_another_home_on_this_machine_has_its_folders_too(
    data: str, tmp_path: Path, runs: Callable[..., Path]
) -> None:
    """Broken once: only the running jobs of one EDL_HOME were looked at."""
    runs(f"{tmp_path}/other", command="train", delta_dir=f"{tmp_path}/there")

    with pytest.raises(UsageError, match=f"end it \\(`EDL_HOME={tmp_path}/other edl stop first`"):
        train(data, delta_dir=f"{tmp_path}/there")


def test_a_folder_of_a_job_that_was_killed_is_free(data: str, tmp_path: Path) -> None:
    folder, lock = paths.claim("first")
    claim(folder, f"{tmp_path}/there")
    os.close(lock)

    assert train(data, delta_dir=f"{tmp_path}/there").delta_dir == f"{tmp_path}/there"


def test_the_checkpoints_in_a_running_jobs_folder_are_its_own(
    data: str, runs: Callable[..., Path]
) -> None:
    folder = runs(command="train")

    with pytest.raises(UsageError, match="--checkpoint_dir: the job 'first', which is running"):
        train(data, checkpoint_dir=str(folder / "checkpoints"))


def test_a_folder_that_a_running_job_reads_may_be_written_to(
    data: str, tmp_path: Path, runs: Callable[..., Path]
) -> None:
    there = str(tmp_path / "there")
    runs(command="evaluate", checkpoint_dir=there)

    assert train(data, checkpoint_dir=there).checkpoint_dir == there


def test_checkpoint_without_settings_is_no_job_to_go_on_with(checkpoints: str) -> None:
    with pytest.raises(UsageError, match="with which settings it was written"):
        resolve("train", {"resume": checkpoints})


def test_damaged_checkpoint_is_named(resumable: Path) -> None:
    (resumable / storage.MANIFEST).write_text("{")

    with pytest.raises(UsageError, match=f"{resumable / storage.MANIFEST} is damaged"):
        resolve("train", {"resume": str(resumable)})


def test_job_that_still_writes_there_is_to_be_ended_first(resumable: Path) -> None:
    folder, lock = paths.claim("demo")
    claim(folder, str(resumable.parent))

    with pytest.raises(UsageError, match="'demo', which writes to .* is still running: end it"):
        resolve("train", {"resume": str(resumable)})
    os.close(lock)


def test_a_job_that_goes_on_goes_on_with_its_run_unless_another_does_already(
    data: str, resumable: Path
) -> None:
    manifest = json.loads((resumable / storage.MANIFEST).read_text())
    books = {"settings": {**manifest["books"]["settings"], "logger": "jsonl", "run": "demo-1"}}
    about = {"version": 8, "num_shards": 1, "num_slots": 4, "files": [], "model": {}}
    storage.write_manifest(resumable, **about, books=books)
    first = resolve("train", {"resume": str(resumable), "checkpoint_dir": f"{data}-first"})
    folder, lock = paths.claim(first.job_name)
    (folder / "settings.json").write_text(first.to_json())
    second = resolve("train", {"resume": str(resumable), "checkpoint_dir": f"{data}-other"})
    os.close(lock)

    assert ("demo-r1", "demo-1") == (first.job_name, first.run)
    assert re.fullmatch(r"demo-r2-[0-9a-f]{8}", second.run)


def test_each_run_that_goes_on_has_the_next_name(resumable: Path) -> None:
    first = resolve("train", {"resume": str(resumable)}).job_name
    paths.job_folder(first).mkdir(parents=True)
    second = resolve("train", {"resume": str(resumable)}).job_name

    assert ("demo-r1", "demo-r2") == (first, second)


def test_only_training_is_gone_on_with(resumable: Path, data: str) -> None:
    with pytest.raises(UsageError, match="is of `edl train`"):
        resolve("evaluate", {"resume": str(resumable), "validation_data": data})


def a_job(name: str, version: int, **settings: Any) -> Path:
    """Leave a job that is over, with a checkpoint in its own folder."""
    folder, lock = paths.claim(name)
    os.close(lock)
    (folder / "settings.json").write_text(JobSettings(job_name=name, **settings).to_json())
    directory = storage.version_directory(folder / "checkpoints", version)
    directory.mkdir(parents=True)
    books = {"settings": json.loads((folder / "settings.json").read_text())}
    storage.write_manifest(
        directory, version=version, num_shards=1, num_slots=1, files=[], model={}, books=books
    )
    return directory


def test_a_jobs_name_stands_for_its_checkpoint_and_a_path_is_a_path(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = a_job("census", 7, model_def="iris", training_data=data)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "census").mkdir()

    assert str(kept) == resolve("train", {"resume": "census"}).resume
    for named in ("census", str(kept.parents[1])):
        found = train(data, checkpoint_dir_for_init=named).checkpoint_dir_for_init
        assert str(kept.parent) == found
    with pytest.raises(UsageError, match="no complete checkpoint"):
        resolve("train", {"resume": "./census"})


def test_a_job_begun_from_an_older_checkpoint_does_not_write_among_newer_ones(
    data: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "c")
    older, newest = (str(storage.version_directory(folder, version)) for version in (7, 9))
    for path in (older, newest):
        Path(path).mkdir(parents=True)
        storage.write_manifest(
            path, version=1, num_shards=1, num_slots=1, files=[], model={}, books={}
        )

    with pytest.raises(UsageError, match="holds newer checkpoints than"):
        train(data, checkpoint_dir=folder, checkpoint_dir_for_init=older)
    train(data, checkpoint_dir=folder, checkpoint_dir_for_init=newest)
    train(data, checkpoint_dir=folder, checkpoint_dir_for_init=folder)


def test_a_run_is_gone_on_with_from_a_store(data: str) -> None:
    there, folder = world("resolve", new=True), Place("flaky://resolve/checkpoints")
    before = dataclasses.asdict(train(data, checkpoint_dir=str(folder), seed=5))
    for version in (7, 9):
        storage.write_manifest(
            folder / f"version-{version:012d}",
            version=version,
            num_shards=1,
            num_slots=4,
            files=[],
            model={},
            books={"settings": before},
        )

    settings = resolve("train", {"resume": str(folder)})

    newest = "flaky://resolve/checkpoints/version-000000000009"
    assert (newest, str(folder), 5) == (settings.resume, settings.checkpoint_dir, settings.seed)
    assert newest == train(data, checkpoint_dir_for_init=newest).checkpoint_dir_for_init
    with pytest.raises(UsageError, match="holds the checkpoints of an earlier job"):
        train(data, checkpoint_dir=str(folder))
    with pytest.raises(UsageError, match=r"holds newer checkpoints than flaky://.*-000000000007"):
        train(data, checkpoint_dir=str(folder), checkpoint_dir_for_init=newest[:-1] + "7")
    assert not [name for name in there.objects if "/.edl-" in name]  # as which it was tried
    there.down, there.error = True, PermissionError(13, "Access Denied")
    for said in ("resume", "checkpoint_dir", "checkpoint_dir_for_init"):
        with pytest.raises(UsageError, match=f"^--{said}: flaky://.*Access Denied"):
            resolve("train", {"model_def": "iris", "training_data": data, said: str(folder)})


def test_what_judges_in_pods_needs_a_folder_that_outlives_them(data: str) -> None:
    given = {
        "runtime": "kubernetes",
        "image_name": "i",
        "validation_data": "/v",
        "keep_best": "auc",
    }
    given |= {"model_def": "iris", "training_data": "/t"}

    with pytest.raises(UsageError, match="--keep_best needs a folder that outlives the pods"):
        resolve("train", given)
    resolve("train", {**given, "job_volume": "claim_name=c"})
    resolve("train", {**given, "checkpoint_dir": "s3://bucket/c"})


@pytest.mark.parametrize(
    ("said", "bounds", "most"),
    [("2", (2, 0), 2), (2, (2, 0), 2), ("1:8", (1, 8), 8), ("0:4", (0, 4), 4), ("3:3", (3, 3), 3)],
)
def test_teachers_are_a_number_or_a_range(
    data: str, said: object, bounds: tuple[int, int], most: int
) -> None:
    settings = train(data, num_teachers=said)

    assert bounds == (settings.num_teachers, settings.max_teachers)
    assert (most, True) == (settings.most_teachers, settings.has_teachers)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"num_teachers": "4:1"}, "--num_teachers 4:1: MIN is above MAX; did you mean 1:4?"),
        ({"num_teachers": "1:x"}, "--num_teachers 1:x is no range: say MIN:MAX"),
        ({"num_teachers": "-1:2"}, "--num_teachers is at least 0"),
        ({"num_teachers": "1:2", "max_teachers": 3}, "leave out --max_teachers"),
        ({"num_teachers": 4, "max_teachers": 3}, "--max_teachers 3 is below --num_teachers 4"),
        ({"num_teachers": "0:3", "without_teachers": "fail"}, "give 1:3, or leave that out"),
    ],
)
def test_a_range_of_teachers_that_cannot_be_is_told(
    data: str, values: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        train(data, **values)
