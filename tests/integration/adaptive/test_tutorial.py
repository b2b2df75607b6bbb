"""AdaptDL's tutorial, transformer and linear regression, written with the same calls.

Two replicas are told to stop, then one goes on.
"""

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path

import pytest
from tools.elastic import generation
from tools.turns import some

import edl
from edl.adaptive import collective, loop, pace, parallel
from edl.adaptive.env import num_replicas, num_restarts, replica_rank

EXAMPLES = Path(edl.__file__).resolve().parent / "docs/examples"
SCRIPTS = {
    **{f"tutorial/step_{n}.py": ("--epochs", "2") for n in range(1, 7)},
    "adaptive_transformer.py": ("--epochs", "2", "--words", "3000", "--autoscale-bsz"),
    "adaptive_linear.py": ("--epochs", "2"),
}


def stop_after(steps):
    """Tell the last replica to stop after so many steps; outside of adaptive loops tell all."""
    made = [0]

    def step(original, everybody):
        def counted(self, *args, **kwargs):
            made[0] += 1
            last = everybody or replica_rank() == num_replicas() - 1
            collective.preemption().requested |= last and made[0] == steps
            return original(self, *args, **kwargs)

        return counted

    helper, model = loop.AdaptiveDataLoaderHelper, parallel.AdaptiveDataParallel
    helper.take = step(helper.take, everybody=False)
    model._plain_step = step(model._plain_step, everybody=True)


def run(say):
    pace.PACE_S = 0.0
    script = os.environ["SCRIPT"]
    if num_restarts() == 0:
        stop_after(int(os.environ["STEPS"]))
    path, printed = EXAMPLES / script, io.StringIO()
    sys.argv = [str(path), *SCRIPTS[script]]
    sys.path.insert(0, str(path.parent))
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        say(printed.getvalue().splitlines())


@pytest.mark.parametrize("script", some(SCRIPTS, 8))
def test_a_script_with_adaptdl_s_calls_stops_and_goes_on_with_another_number(tmp_path, script):
    steps = "7" if script != "tutorial/step_1.py" else "30"  # in the first epoch, in the second
    first = generation(run, tmp_path, 2, SCRIPT=script, STEPS=steps)
    second = generation(run, tmp_path, 1, restarts=1, SCRIPT=script)

    assert [143, 143, 0] == [replica.code for replica in [*first, *second]]
    assert (tmp_path / "checkpoint-000000").is_dir() == (script != "tutorial/step_1.py")
    assert any(line.startswith("epoch 1: ") for line in second[0].said[0])
