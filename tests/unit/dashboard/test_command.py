"""`edl dashboard` and `edl train --dashboard`: what is refused before anything starts."""

import os
import stat
import sys

import pytest

from edl.cli import dashboard as command
from edl.cli.main import run
from edl.common.errors import UsageError
from edl.dashboard.server import Place

TOKEN = "a-token-of-sixteen-letters"


def said(capsys, *arguments):
    assert 2 == run(arguments)
    return capsys.readouterr().err


@pytest.fixture(autouse=True)
def _no_jobs(tmp_path, monkeypatch):
    monkeypatch.setenv("EDL_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--host", "0.0.0.0"], "is not on loopback"),
        (["--host", "0.0.0.0", "--tls_cert", "cert.pem"], "TLS needs both"),
        (["--demo"], "add --allow_actions"),
        (["--from", "nowhere"], "no settings.json"),
        (["--from", "nowhere", "-n", "team"], "leave out --runtime"),
        (["nobody"], "There is no job 'nobody' here"),
        (["--export", "it.html"], "Which job?"),
        (["--token_file", "nowhere"], "--token_file nowhere"),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_sentence(capsys, arguments, why):
    told = said(capsys, "dashboard", *arguments)

    assert why in told
    assert 1 == told.count("\n")


@pytest.mark.parametrize(
    "other", [["--detach"], ["--queue"], ["--dry_run"], ["--yaml", "-"]], ids=lambda x: x[0]
)
def test_a_job_that_nobody_watches_has_no_dashboard_beside_it(capsys, other):
    told = said(capsys, "train", "--dashboard", *other)

    assert f"leave out {other[0]}" in told


@pytest.mark.parametrize("token", ["", "short", "with a space in it, which is none"])
def test_a_token_that_no_address_can_hold_is_refused(token):
    with pytest.raises(UsageError, match="at least 16 letters"):
        Place(token)


def test_a_dashboard_beside_a_job_ends_with_it_and_its_address_is_printed(
    tmp_path, monkeypatch, capsys
):
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\necho http://address\nexec sleep 600\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(fake))

    with command.beside("demo", wanted=True):
        assert "dashboard: http://address" in capsys.readouterr().out
        os.kill(int((tmp_path / "pid").read_text()), 0)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
