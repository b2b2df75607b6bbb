"""The command that a job prints as `next` is run as a user would: pasted into a shell."""

import os
import shlex
import subprocess
import sys

from tools.turns import in_turn

EDL = f"{shlex.quote(sys.executable)} -m edl"


@in_turn(2)
def test_the_next_command_evaluates_the_best_checkpoint_as_it_was_evaluated(tmp_path):
    data = tmp_path / "the data's.txt"  # of no format by its name
    names = ("sepal_length", "sepal_width", "petal_length", "petal_width", "label")
    rows = [[i % 7, i % 3, i % 5 - 2, i % 2, i % 3] for i in range(60)]
    data.write_text("\n".join(",".join(map(str, row)) for row in (names, *rows)) + "\n")
    env = {**os.environ, "EDL_HOME": str(tmp_path / "home"), "COLUMNS": "30"}

    def run(command):
        return subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            text=True,
            timeout=200,
            env=env,
            check=False,
        )

    trained = run(
        f"{EDL} train --model_def iris --model_params hidden=8 --minibatch_size 16 --num_workers 1 "
        f"--training_data {shlex.quote(str(data))} --validation_data {shlex.quote(str(data))} "
        "--data_reader_params format=csv --num_epochs 2 --strategy allreduce --keep_best accuracy "
        "--job_name j"
    )
    (told,) = (line for line in trained.stdout.splitlines() if line.startswith("next "))
    (best,) = (line for line in trained.stdout.splitlines() if line.startswith("best "))
    command = told.removeprefix("next").strip()
    evaluated = run(f"{EDL} {command.removeprefix('edl ')}")

    assert (0, 0) == (trained.returncode, evaluated.returncode), evaluated.stderr
    (metrics,) = (line for line in evaluated.stdout.splitlines() if line.startswith("metrics "))
    value = best.removeprefix("best").split("·")[0].strip()
    assert value == metrics.removeprefix("metrics").strip()
    assert "home/jobs/j/checkpoints/best/version-" in command
