"""A job's identity travels in the environment and in the job's folder."""

import pytest

from edl.common.errors import EdlError, UsageError
from edl.common.identity import IDENTITY_VARIABLE, Identity, job_identity

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def certified():
    return Identity.create("secret")


def test_a_process_has_the_identity_of_its_environment(monkeypatch, certified):
    for name, value in certified.variables().items():
        monkeypatch.setenv(name, value)

    assert certified == job_identity("secret")


def test_a_process_without_an_identity_has_its_token_alone(monkeypatch):
    for name, value in Identity("secret").variables().items():
        monkeypatch.setenv(name, value)

    assert Identity("secret") == job_identity("secret")


def test_an_identity_of_another_job_than_the_token_is_one_clear_error(monkeypatch, certified):
    monkeypatch.setenv(IDENTITY_VARIABLE, certified.to_variable())

    with pytest.raises(UsageError, match="EDL_IDENTITY and EDL_TOKEN are of two jobs"):
        job_identity("another")


def test_a_damaged_identity_is_one_clear_error(monkeypatch, certified):
    monkeypatch.setenv(IDENTITY_VARIABLE, certified.to_variable()[:-9])

    with pytest.raises(UsageError, match="EDL_IDENTITY holds no identity of a job"):
        job_identity("secret")


@pytest.mark.parametrize("kind", ["certified", "plain"])
def test_a_jobs_folder_keeps_its_identity_for_the_owner_alone(tmp_path, certified, kind):
    identity = certified if kind == "certified" else Identity("secret")

    identity.save(tmp_path)

    assert identity == Identity.of_folder(tmp_path)
    assert {0o600} == {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}


def test_off_loopback_there_must_be_a_certificate(certified):
    plain = Identity("secret")

    assert (False, True) == (plain.encrypts("127.0.0.1"), certified.encrypts("127.0.0.1"))
    assert certified.encrypts("10.0.0.1")
    with pytest.raises(EdlError, match=r"10\.0\.0\.1 is not on loopback.* set EDL_IDENTITY"):
        plain.encrypts("10.0.0.1")
