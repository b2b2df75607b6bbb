"""The printed `next` command says again what the job was given, and a shell reads it so."""

import dataclasses
import re
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.cli import main as cli
from edl.cli.next_command import next_command
from edl.cli.options import given_values
from edl.common.resolve import typed
from edl.common.settings import JobSettings, knobs

pytestmark = pytest.mark.fast

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00\n\r"), max_size=12)
VALUE = st.one_of(
    TEXT,
    st.integers(),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
    st.lists(TEXT, max_size=2),
)
NAMES = st.from_regex(r"[A-Za-z_]\w{0,6}", fullmatch=True)
GIVEN = st.fixed_dictionaries(
    {
        "model_def": st.just("iris"),
        "model_params": st.dictionaries(NAMES, VALUE, max_size=3),
        "data_reader_params": st.dictionaries(NAMES, VALUE, max_size=3),
        "envs": st.dictionaries(NAMES, TEXT, max_size=3),
        "validation_data": TEXT.map(lambda text: f"/data/{re.sub('[,/]', '', text).strip()}x"),
        "minibatch_size": st.integers(1, 9),
        "num_ps": st.integers(0, 3),
        "seed": st.integers(0, 3),
        "device": st.sampled_from(["auto", "cpu"]),
        "lease_s": st.floats(1, 99),
        "strategy": st.sampled_from(["ps", "allreduce"]),
    }
)
ENDED: dict[str, Any] = {"state": "done", "exit_code": 0, "command": "train", "job_name": "j"}


@given(GIVEN)
def test_a_shell_and_edl_read_the_settings_of_the_job(said: dict[str, Any]) -> None:
    settings = JobSettings(job_name="j", training_data="/t.csv", num_epochs=7, **said)

    line = next_command({**ENDED, "checkpoint": "/c/version-1"}, dataclasses.asdict(settings))

    assert "\n" not in line
    edl, command, *words = shlex.split(line)
    assert ("edl", "evaluate") == (edl, command)
    with cli.cli.commands[command].make_context(command, words) as ctx:
        values, origins = given_values(None, ctx.params)
    again = typed(command, values, origins)
    assert "/c/version-1" == again.checkpoint_dir_for_init
    own = {"job_name", "strategy", "checkpoint_dir_for_init"} | (
        {"num_ps"} if not settings.num_ps else set()
    )
    for knob in knobs():
        if command in knob.of and knob.name not in own:
            assert getattr(settings, knob.name) == getattr(again, knob.name), knob.name


def test_the_best_checkpoint_is_evaluated_before_the_last_and_by_the_trainings_data() -> None:
    settings = {"model_def": "iris", "training_data": "/my data.csv"}
    status = {**ENDED, "checkpoint": "/c/last", "best": {"checkpoint": "/c/best/first"}}

    expected = "edl evaluate --model_def iris --validation_data '/my data.csv'"
    assert f"{expected} --checkpoint_dir_for_init /c/best/first" == next_command(status, settings)
