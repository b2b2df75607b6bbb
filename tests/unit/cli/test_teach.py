"""`edl teach`, `edl registry` and --teachers: what is wrong is told in a sentence."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from edl.common.identity import Identity
from edl.registry.identity import VARIABLE

Run = Callable[..., tuple[int, str, str]]


def test_a_name_without_a_registry_is_told(run: Run) -> None:
    code, _, err = run("teach", "taught_lenet", "--name", "lenet")

    assert 2 == code
    assert "edl: error: --name and --ttl_s are of --registry" in err


def test_a_port_that_is_taken_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, Identity("token").to_variable())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run("registry", "--port", str(port))

    assert 1 == code
    assert err.startswith(f"edl: error: cannot listen on 127.0.0.1:{port}: choose another --port")


def test_an_identity_that_is_none_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "cut o")
    code, _, err = run("registry")

    assert 2 == code
    assert f"{VARIABLE} is no identity" in err


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("edl://h/lenet", "is no edl://HOST:PORT/NAME."),
        ("edl://h:1/a%20b", "names 'a b', which is no name"),
        ("edls://h:1/lenet", "is of no known kind: edl, kserve+http"),
    ],
)
def test_a_name_that_is_none_is_told_before_a_job_begins(
    run: Run, tmp_path: Path, where: str, why: str
) -> None:
    data = tmp_path / "train.csv"
    data.write_text("a\n1\n")
    flags = ("--model_def", "iris", "--training_data", str(data), "--teachers", where)
    code, _, err = run("train", *flags)

    assert 2 == code
    assert f"--teachers: {where!r} {why}" in err
