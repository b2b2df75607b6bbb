"""States of `edl.adaptive` of versions before are gone on with: tests/kept/README.md."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from kept import adapted, served
from kept.folders import JOB, all_kept
from torch import distributed


@pytest.fixture(scope="module", autouse=True)
def process_group():
    """A group for all tests here: gloo keeps some of one to the end of the process."""
    adapted.meet()
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("kept", all_kept("adaptive"))
def test_a_script_goes_on_with_what_one_of_before_has_saved(kept, tmp_path):
    kept.place(tmp_path / "home")
    before = json.loads((tmp_path / "home" / JOB / "before.json").read_text())

    told = served.of_adaptive(tmp_path / "home" / JOB)

    expected = kept.expected["told"]
    assert expected["read"] == told["read"]
    assert adapted.RECORDS * adapted.EPOCHS == expected["records"] == told["records"]
    for epoch in map(str, range(adapted.EPOCHS)):
        both = [*before["read"].get(epoch, []), *told["read"].get(epoch, [])]
        assert dict.fromkeys(range(adapted.RECORDS), 1) == Counter(both)
    for wanted, found in zip(expected["weights"], told["weights"], strict=True):
        assert wanted == pytest.approx(found, abs=1e-4)
    assert before["weights"][1] == pytest.approx(told["weights"][0], abs=1e-4)
