"""The command line: flags, files of flags, errors, and commands on jobs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl.cli import begin
from edl.cli import main as cli
from edl.common import paths
from edl.jobs import local as jobs

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def train(run: Run, tmp_path: Path) -> Run:
    """Return a function that runs `edl train` of something that is there."""
    path = tmp_path / "train.csv"
    path.write_text("a\n1\n")

    def call(*arguments: str) -> tuple[int, str, str]:
        return run("train", "--model_def", "iris", "--training_data", str(path), *arguments)

    return call


@pytest.fixture
def resolved(train: Run) -> Callable[..., dict[str, Any]]:
    """Return a function of arguments, of which it returns what --dry-run says."""

    def call(*arguments: str) -> dict[str, Any]:
        code, out, err = train("--job_name", "j", "--dry-run", *arguments)
        assert (0, "") == (code, err)
        made: dict[str, Any] = yaml.safe_load(out)
        return made

    return call


# -- flags


def test_mistyped_flag_is_an_error_with_the_right_one(train: Run) -> None:
    code, out, err = train("--num_wrokers=3")

    assert (2, "") == (code, out)
    assert err.startswith("edl: error: No such option '--num_wrokers'")
    assert "num_workers" in err
    assert 1 == len(err.splitlines())


def test_no_servers_with_strategy_ps_is_an_error(train: Run) -> None:
    code, _, err = train("--num_ps_pods=0")

    assert 2 == code
    assert err == (
        "edl: error: --strategy ps keeps parameters on servers, but --num_ps is 0: "
        "give --num_ps 1 or more.\n"
    )


@pytest.mark.parametrize(
    ("flag", "part"),
    [
        ("--image_name=x", "--image_name is of jobs in a cluster: add --runtime kubernetes"),
        ("--worker-resource-request=cpu=1", "or say `edl submit`"),
        ("--worker_image=x", "all pods have --image_name"),
        ("--need_tf_config=x", "leave it out"),
        ("--eval_metrics_fn=f", "docs/model-zoo.md"),
        ("--tensorboard_log_dir=x", "--output holds the TensorBoard"),
        (
            "--job_command=x",
            "`edl launch` runs a script of your own (docs/launch.md), and edl.adaptive",
        ),
    ],
)
def test_flag_of_elasticdl_without_a_meaning_here_is_an_error(
    train: Run, flag: str, part: str
) -> None:
    code, _, err = train(flag)

    assert (2, True) == (code, part in err)


@pytest.mark.parametrize(
    "spelling", ["--num_ps", "--num-ps", "--num_ps_pods", "--num-ps-pods", "--num-ps_pods"]
)
def test_dashes_underscores_and_other_names_are_alike(
    resolved: Callable[..., dict[str, Any]], spelling: str
) -> None:
    assert 3 == resolved(spelling, "3")["num_ps"] == resolved(f"{spelling}=3")["num_ps"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--use_async"], True),
        (["--use-async"], True),
        (["--use_async=true"], True),
        (["--use-async=False"], False),
        (["--use_async", "false"], False),
        (["--no-use-async"], False),
        (["--no_use_async"], False),
        ([], False),
    ],
)
def test_boolean_is_said_in_any_way(
    resolved: Callable[..., dict[str, Any]], flags: list[str], expected: bool
) -> None:
    assert expected is resolved(*flags, "--seed", "1")["use_async"]


def test_default_that_is_true_is_turned_off(resolved: Callable[..., dict[str, Any]]) -> None:
    assert resolved("--no-shuffle")["shuffle"] is False


def test_boolean_and_its_negation_contradict(train: Run) -> None:
    code, _, err = train("--use_async", "--no_use_async")

    assert (2, True) == (code, "--use_async and --no_use_async contradict" in err)


def test_dictionary_may_be_given_in_parts(resolved: Callable[..., dict[str, Any]]) -> None:
    made = resolved("--envs", "A=1,2,B=x", "--envs", '{"C": "d,e"}', "--model_params", "dim=8")

    assert ({"A": "1,2", "B": "x", "C": "d,e"}, {"dim": 8}) == (made["envs"], made["model_params"])


# -- the file


def test_flags_win_over_the_file_and_the_file_over_defaults(
    resolved: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("num-workers: 4\nnum_ps: 2\nuse_async: true\n")

    made = resolved("--config", str(tmp_path / "job.yaml"), "--num_ps", "3", "--no-use-async")

    assert (4, 3, False, 64) == (
        made["num_workers"],
        made["num_ps"],
        made["use_async"],
        made["minibatch_size"],
    )


def test_dry_run_says_flag_where_a_flag_won(train: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("num_ps: 2\n")

    _, out, _ = train("--config", str(tmp_path / "job.yaml"), "--num_ps", "3", "--dry_run")

    assert "num_ps: 3  # flag" in out


def test_mistake_in_the_file_is_told_with_its_line(train: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("num_workers: 4\nnum_pss: 2\n")

    code, _, err = train("--config", str(tmp_path / "job.yaml"))

    assert 2 == code
    assert "job.yaml:2: there is no setting 'num_pss'; did you mean 'num_ps'?" in err


def test_contradiction_with_the_file_names_its_line(train: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("num_ps: 0\n")

    _, _, err = train("--config", str(tmp_path / "job.yaml"))

    assert "job.yaml:1) is 0: give --num_ps" in err


def test_dry_run_prints_a_job_file_with_origins_and_starts_nothing(
    train: Run, run: Run, tmp_path: Path, home: Path
) -> None:
    (tmp_path / "job.yaml").write_text("lease_s: 5\n")
    arguments = [
        "--config",
        str(tmp_path / "job.yaml"),
        "--job_name",
        "j",
        "--model_params",
        "a=[1, x]",
    ]

    code, first, _ = train(*arguments, "--dry-run")
    (tmp_path / "again.yaml").write_text(first)
    _, second, _ = run("train", "--config", str(tmp_path / "again.yaml"), "--dry-run")

    assert 0 == code
    assert "job_name: j  # flag" in first
    assert f"lease_s: 5.0  # {tmp_path}/job.yaml:1" in first
    assert "num_ps: 1  # default" in first
    assert yaml.safe_load(first) == yaml.safe_load(second)
    assert not home.exists()


# -- errors and codes


def test_error_shows_its_traceback_at_level_debug_only(train: Run) -> None:
    _, _, quiet = train("--num_ps=0")
    _, _, loud = train("--num_ps=0", "--log-level", "debug")

    assert (False, True) == ("Traceback" in quiet, "Traceback" in loud)


def test_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(begin, "resolve", broken)

    with pytest.raises(ZeroDivisionError):
        cli.run(["train"])


def test_command_that_is_not_there_is_a_usage_error(run: Run) -> None:
    code, _, err = run("trian")

    assert (2, True) == (code, err.startswith("edl: error: No such command 'trian'"))


@pytest.mark.parametrize(
    "arguments",
    [["--help"], *([name, "--help"] for name in ("train", "submit", "status", "doctor"))],
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from edl.cli import main as cli; cli.run(sys.argv[1:]); "
        "heavy = {'torch', 'numpy', 'pyarrow', 'numba', 'tensorboard', 'grpc', 'pydantic', 'rich', "
        "'kubernetes', 'urllib3', 'cryptography', 'scipy'}; "
        "sys.exit(str(sorted(heavy & set(sys.modules)) or ''))"
    )

    found = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert "" == found.stderr.strip()


def test_help_of_train_documents_the_exit_codes(run: Run) -> None:
    _, out, _ = run("train", "--help")

    assert "3    finished, but data was quarantined" in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed(run: Run, shell: str) -> None:
    code, out, _ = run("completion", shell)

    assert (0, True) == (code, "_EDL_COMPLETE" in out)


def test_completion_knows_flags_and_choices() -> None:
    from click.shell_completion import ShellComplete

    complete = ShellComplete(cli.cli, {}, "edl", "_EDL_COMPLETE")

    flags = [item.value for item in complete.get_completions(["train"], "--num_w")]
    words = [item.value for item in complete.get_completions(["train", "--log_format"], "")]
    assert (["--num_workers"], ["text", "json"]) == (flags, words)


def completed(arguments: list[str], incomplete: str) -> list[str]:
    from click.shell_completion import ShellComplete

    complete = ShellComplete(cli.cli, {}, "edl", "_EDL_COMPLETE")
    return [item.value for item in complete.get_completions(arguments, incomplete)]


@pytest.mark.parametrize("command", ["status", "logs", "stop", "scale", "replay"])
def test_completion_knows_the_jobs(command: str, ended: Any) -> None:
    ended("census", {})
    ended("digits", {})

    assert ["census"] == completed([command], "c")


def test_completion_knows_definitions_jobs_to_go_on_with_and_data_sets(ended: Any) -> None:
    ended("census", {"state": "done"})

    assert ["dc", "dcn_v2"] == completed(["train", "--model_def"], "dc")  # the first: a file
    assert ["c", "census"] == completed(["train", "--resume"], "c")
    assert ["iris"] == completed(["data", "prepare"], "ir")
    assert [] == completed(["status", "--namespace", "lab"], "c")  # no cluster is no error


@pytest.mark.parametrize("group", [[], ["zoo"], ["data"], ["chaos"]])
def test_without_a_command_the_help_is_printed(run: Run, group: list[str]) -> None:
    code, out, err = run(*group)

    assert (0, True, "") == (code, "Usage: edl" in out and "Commands:" in out, err)


@pytest.mark.parametrize(
    ("redirected", "code", "told"),
    [
        (">&-", 0, ""),
        (">&- 2>&- <&-", 0, ""),
        (
            ">/dev/full",
            1,
            "edl: error: what is printed cannot be written: No space left on device.",
        ),
        ("| true; exit ${PIPESTATUS[0]}", 1, ""),
    ],
)
def test_stdout_that_is_closed_or_full_is_no_traceback(
    redirected: str, code: int, told: str
) -> None:
    # The help of train is longer than a pipe's first page; it is written once `true` has gone.
    command = f"sleep 0.2; exec {sys.executable} -m edl train --help"
    if redirected.startswith("|"):
        command = f"(sleep 0.2; {sys.executable} -m edl train --help)"

    found = subprocess.run(
        ["bash", "-c", f"{command} {redirected}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (code, told) == (found.returncode, found.stderr.strip())


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_a_flag_without_a_meaning_for_a_command_is_refused(run: Run, command: str) -> None:
    from edl.common.settings import knobs

    told = {
        knob.name: run(command, f"--{knob.name}", "1")[2]
        for knob in knobs()
        if command not in knob.of
    }

    assert {"train": 3, "evaluate": 47, "predict": 45}[command] == len(told)
    assert [] == [n for n, text in told.items() if f"--{n} is of `edl" not in text]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["zoo", "check", "iris", "--minibatch_size=3"], "--minibatch_size is about the data"),
        (["launch", "--token_file=x", "s.py"], "--token_file is what --join is let in by"),
        (["launch", "--join=h:1", "--port=3", "s.py"], "--port is of the job, which runs already"),
        (["train", "--dry-run", "--yaml"], "--dry_run starts nothing with --yaml"),
        (["train", "--dry-run", "--detach"], "--detach starts nothing with --dry_run"),
        (["replay", "nosuch", "--losses=/proc/x"], "--losses: /proc cannot be written"),
        (["replay", "nosuch", "--until=1:1", "--output=/proc/x"], "--output: /proc cannot be"),
        (["chaos", "run", "--kill=ps:at=1s", "--log=/proc/x"], "--log: /proc cannot be written"),
        (["chaos", "matrix", "--out=/proc/x"], "--out: /proc cannot be written"),
        (["chaos", "matrix", "--work=/proc/x"], "--work: /proc cannot be written"),
        (["launch", "--checkpoint_dir=/proc/x", __file__], "--checkpoint_dir: /proc cannot be"),
    ],
)
def test_usage_that_means_nothing_or_cannot_be_is_one_sentence(
    run: Run, arguments: list[str], told: str
) -> None:
    code, _, err = run(*arguments)

    assert (2, True) == (code, err.startswith(f"edl: error: {told}")), err


def test_replay_prefers_the_job_to_a_folder_of_its_name(
    run: Run, ended: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended("census", {"state": "done"})
    (tmp_path / "census").mkdir()
    monkeypatch.chdir(tmp_path)

    assert "home/jobs/census" in run("replay", "census")[2]
    assert "home/jobs" not in run("replay", "./census")[2]


def test_one_damaged_job_hides_no_other(run: Run, ended: Any, home: Path) -> None:
    ended("census", {"state": "done"})
    ended("digits", {"state": "done"})
    (home / "jobs" / "digits" / "result.json").write_text("{")

    code, out, _ = run("list", "-o", "json")

    assert [("census", "done"), ("digits", "dead")] == [
        (each["job_name"], each["state"]) for each in json.loads(out)
    ]
    assert 0 == code


def test_version_names_what_it_stands_on(run: Run) -> None:
    _, out, _ = run("version")

    assert ["edl", "python", "torch", "numpy", "numba", "grpcio", "protobuf"] == [
        line.split()[0] for line in out.splitlines()
    ]


# -- jobs


def test_status_of_a_running_job_comes_from_its_master(run: Run, running: Any) -> None:
    running("census")

    code, out, _ = run("status", "census", "-o", "json")

    assert (0, "running", 38912) == (
        code,
        json.loads(out)["state"],
        json.loads(out)["records_done"],
    )


def test_status_lists_jobs_in_every_condition(
    run: Run, running: Any, ended: Any, dead_pid: int
) -> None:
    ended("old", {"state": "done", "exit_code": 0})
    job = ended("gone", None)
    (job.folder / "master.json").write_text(json.dumps({"address": "127.0.0.1:1", "pid": dead_pid}))
    (job.folder / "token").write_text("x")
    ended("stillborn", None)
    running("census")

    code, out, _ = run("status", "-o", "json")

    states = {status["job_name"]: status["state"] for status in json.loads(out)}
    assert (0, {"old": "done", "gone": "dead", "stillborn": "dead", "census": "running"}) == (
        code,
        states,
    )


def test_table_of_jobs_fits_a_narrow_terminal(run: Run, running: Any) -> None:
    running("census")

    _, out, _ = run("status")

    assert [
        "job state done epoch records/s loss workers time",
        "census running 60 % 2/3 1,930 0.4821 2 0:42",
    ] == [" ".join(line.split()) for line in out.splitlines()]


def test_status_as_yaml(run: Run, ended: Any) -> None:
    ended("old", {"state": "done", "exit_code": 0})

    _, out, _ = run("status", "old", "--output", "yaml")

    assert "done" == yaml.safe_load(out)["state"]


def test_no_jobs_says_how_to_start_one(run: Run) -> None:
    code, out, _ = run("status")

    assert (0, True) == (code, "`edl train` starts one" in out)


def test_unknown_job_is_an_error_that_lists_what_there_is(run: Run, ended: Any) -> None:
    ended("old", {"state": "done"})

    code, _, err = run("status", "new")

    assert (2, "edl: error: There is no job 'new' here. There are: old.\n") == (code, err)


def test_stop_asks_the_only_running_job(run: Run, running: Any, ended: Any) -> None:
    ended("old", {"state": "done"})
    master = running("census")

    code, out, _ = run("stop")

    assert (0, ["stop: edl stop"]) == (code, master.asked)
    assert "census is stopping" in out


def test_stop_without_a_name_asks_which_of_several(run: Run, running: Any) -> None:
    running("one")
    running("two")

    code, _, err = run("stop")

    assert (2, True) == (code, "Which job? There are: one, two." in err)


@pytest.mark.parametrize("command", ["stop", "cancel"])
def test_stop_of_a_job_that_is_over_says_so(run: Run, ended: Any, command: str) -> None:
    ended("old", {"state": "done"})

    assert (1, "", "edl: error: Job 'old' is over: done.\n") == run(command, "old")


@pytest.fixture
def beginning() -> Any:
    """Yield a function that makes a job whose master does not serve yet, and runs `signals`."""
    began: list[subprocess.Popen[str]] = []

    def start(name: str, signals: str) -> subprocess.Popen[str]:
        folder, lock = paths.claim(name)
        (folder / "settings.json").write_text("{}")
        code = f"import signal, time; {signals}; print(flush=True); time.sleep(600)"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "EDL_JOB_DIR": str(folder)},
            pass_fds=(lock,),
            stdout=subprocess.PIPE,
            text=True,
        )
        os.close(lock)
        began.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in began:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("command", "signals", "in_order"),
    [
        ("stop", "signal.signal(signal.SIGTERM, lambda *_: exit(7))", True),
        ("stop", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", False),
        ("cancel", "signal.signal(signal.SIGTERM, lambda *_: exit(7))", False),
    ],
    ids=["stop", "stop of one that hangs", "cancel"],
)
def test_a_job_that_has_not_begun_can_be_ended(
    run: Run, beginning: Any, monkeypatch: Any, command: str, signals: str, in_order: bool
) -> None:
    if not in_order:
        monkeypatch.setattr(jobs, "_GO_S", 0.2)
    process = beginning("census", signals)

    code, out, _ = run(command, "census")

    assert (0, True) == (code, "census is" in out)
    assert in_order == (7 == process.wait(60))
    status = jobs.find("census").status()
    assert ("stopped", 130) == (status["state"], status["exit_code"])


def test_scale_of_servers_says_what_is_wanted_or_why_it_cannot_be(run: Run, running: Any) -> None:
    master = running("census")

    assert run("scale", "census", "--num_ps", "3")[:2] == (0, "census: 3 servers wanted\n")
    both = run("scale", "census", "--num_workers", "5", "--num_ps", "2")
    refused = run("scale", "census", "--num_ps", "9")
    nothing = run("scale", "census")

    assert both[:2] == (0, "census: 2 -> 5 workers wanted, 2 servers wanted\n")
    assert refused[0] == 1
    assert "it keeps its servers" in refused[2]
    assert nothing[0] == 2
    assert "How many? Say it once" in nothing[2]
    assert master.asked == ["scale: 0, 3 servers", "scale: 5, 2 servers", "scale: 0, 9 servers"]


def test_scale_tells_before_and_after(run: Run, running: Any) -> None:
    master = running("census")

    code, out, _ = run("scale", "census", "--num-workers", "5")

    assert (0, "census: 2 -> 5 workers wanted\n", ["scale: 5"]) == (code, out, master.asked)


def test_a_checkpoint_is_asked_for_until_it_is_written(run: Run, running: Any) -> None:
    master = running("census")
    master.status["answers_at"] = 3

    told = run("checkpoint", "write", "census")

    assert (0, "/checkpoints/version-000000000700\n", "") == told
    assert (3, 1) == (len(master.asked), len(set(master.asked)))  # one question, repeated


def test_a_checkpoint_that_cannot_be_or_not_in_time_is_said(run: Run, running: Any) -> None:
    master = running("census")
    master.status["answers_at"] = 1000
    late = run("checkpoint", "write", "census", "--timeout", "0s")
    master.status["command"] = "evaluate"
    refused = run("checkpoint", "write", "census")
    mistyped = run("checkpoint", "write", "census", "--timeout", "soon")

    assert (1, True) == (late[0], "is not written after 0 s; it still may be" in late[2])
    assert (1, True) == (refused[0], "only a job that trains has checkpoints" in refused[2])
    assert (2, True) == (mistyped[0], "--timeout: 'soon' is no time" in mistyped[2])


def test_scale_of_teachers_says_how_many_or_by_need(run: Run, running: Any) -> None:
    master = running("census")

    assert (0, "census: 0 teachers wanted\n", "") == run("scale", "census", "--num_teachers", "0")
    assert "1:8 teachers wanted" in run("scale", "census", "--num_teachers", "1:8")[1]
    assert ["scale: 0, 0:0 teachers", "scale: 0, 1:8 teachers"] == master.asked
    for said, why in (("8:1", "did you mean 1:8?"), ("x", "is no range"), ("-1", "give 0 or more")):
        code, _, err = run("scale", "census", f"--num_teachers={said}")
        assert (2, True) == (code, why in err), err


def test_wrong_token_is_refused(run: Run, running: Any, home: Path) -> None:
    running("census")
    (home / "jobs/census/token").write_text("wrong")

    code, _, err = run("stop", "census")

    assert (1, True) == (code, err.startswith("edl: error: the job's token is missing or wrong"))


# -- logs


@pytest.fixture
def logged(ended: Any) -> Any:
    job = ended("old", {"state": "done"})
    logs = job.folder / "logs"
    (logs / "master.log").write_text("m1\nm2\n")
    (logs / "worker-0.log").write_text("a1\na2\na3")
    (logs / "worker-1.log").write_text("b1\n")
    return job


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            [],
            [
                "master     | m1",
                "master     | m2",
                "worker-0   | a1",
                "worker-0   | a2",
                "worker-0   | a3",
                "worker-1   | b1",
            ],
        ),
        (["--tail", "1"], ["master     | m2", "worker-0   | a3", "worker-1   | b1"]),
        (["--role", "worker", "--tail", "1"], ["worker-0   | a3", "worker-1   | b1"]),
        (["--role", "worker", "--index", "1"], ["b1"]),
        (["--role", "master", "--follow"], ["m1", "m2"]),
        (["--tail", "0"], []),
    ],
)
def test_logs_are_told_by_process(
    run: Run, logged: Any, arguments: list[str], expected: list[str]
) -> None:
    code, out, _ = run("logs", "old", *arguments)

    assert (0, expected) == (code, out.splitlines())


def test_log_that_is_not_there_is_an_error_that_lists_what_there_is(run: Run, logged: Any) -> None:
    code, _, err = run("logs", "--role", "worker", "--index", "7")

    assert 2 == code
    assert "no such log; there are: master, worker-0, worker-1." in err


def test_index_needs_a_role(run: Run, logged: Any) -> None:
    code, _, err = run("logs", "--index", "1")

    assert (2, True) == (code, "--index needs --role" in err)


# -- definitions and data


def test_zoo_init_makes_a_definition_that_checks(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    made, out, _ = run("zoo", "init", str(folder), "--name", "shop")
    command = out.splitlines()[-1].removeprefix("next: edl ").split()

    code, told, err = run(*command)

    assert (0, 0, "") == (made, code, err)
    assert "ok      loss: " in told


def test_zoo_list_names_the_built_in_definitions(run: Run) -> None:
    _, out, _ = run("zoo", "list")

    assert "deepfm" in [line.split()[0] for line in out.splitlines()]


def test_zoo_check_of_a_definition_that_is_not_there(run: Run) -> None:
    code, _, err = run("zoo", "check", "deepfn")

    assert (2, True) == (code, "did you mean 'deepfm'" in err)


def test_data_are_prepared_listed_and_verified(run: Run, tmp_path: Path) -> None:
    out = str(tmp_path / "data")

    prepared, _, _ = run("data", "prepare", "iris", "--out", out)
    _, listed, _ = run("data", "list", "--out", out)
    verified, _, _ = run("data", "verify", "--out", out)

    assert (0, 0, True) == (prepared, verified, f"{out}/iris; licence" in listed)
