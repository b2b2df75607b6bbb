"""The tutorial from raw files to answers, run as it is written."""

import json
import re
from pathlib import Path

import pytest
from tools.own import free_port
from tools.pages import run_page
from tools.stage import kill_jobs
from tools.turns import in_turn

PAGE = Path(__file__).parents[2] / "docs" / "ctr.md"
PORTS = ("8000", "8010", "8011", "8020", "8021", "8022", "8023")


@pytest.fixture
def home(tmp_path):
    yield tmp_path / "home"
    kill_jobs(tmp_path / "home")


@in_turn(0, 6)
def test_each_block_of_the_page_does_what_the_page_says(tmp_path, home):
    """Broken once: the definition in the export lacks its analysis."""

    def with_port(script: str) -> str:
        return script.replace("edl serve ctr ", f"edl serve ctr --grpc_port {free_port()} ")

    told = run_page(PAGE, tmp_path, home, PORTS, with_port)

    assert "78,147/78,147 records" in told
    assert max(map(float, re.findall(r"auc (0\.\d+)", told))) > 0.91
    found = re.findall(r"(\d+) answers, off by (\S+) at most", told)
    assert ["6512", "6512"] == [count for count, _ in found], told
    assert all(float(off) < 1e-4 for _, off in found), told
    answers = re.findall(r'\{"model_name".*\}$', told, re.MULTILINE)
    before, after = map(json.loads, answers)
    assert int(before["model_version"]) > 0
    assert before["model_version"] != after["model_version"]
    assert before["outputs"][0]["data"] != after["outputs"][0]["data"]
