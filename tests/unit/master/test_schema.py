"""The schema that a job's start has found: with the plan, whichever master reads it."""

import json

import pytest

from edl.common.errors import UsageError
from edl.common.settings import JobSettings
from edl.master import opening

SCHEMA = {"format": 1, "columns": {"user": {"type": "text", "found": "seen in all records"}}}
DESCRIBED = {"training": [["a", 8]], "has": [], "schema": SCHEMA}
SETTINGS = JobSettings(minibatch_size=2, schema={"user": "text"})


def begun(folder, described):
    (folder / "describe.json").write_text(json.dumps(described))
    books = opening.begin(SETTINGS, folder, described)
    books.journal.close()
    return books


def test_workers_are_told_what_was_found_by_each_master(tmp_path):
    books = begun(tmp_path, DESCRIBED)

    after = opening.resume(SETTINGS, tmp_path)
    after.journal.close()

    assert SCHEMA == books.settings(SETTINGS).schema == after.settings(SETTINGS).schema


def test_a_job_that_a_version_before_has_begun_has_what_it_was_given(tmp_path):
    books = begun(tmp_path, {"training": [["a", 8]], "has": []})

    assert books.settings(SETTINGS) == SETTINGS


def test_what_a_check_leaves_that_is_no_schema_is_one_sentence(tmp_path):
    """It may be a stranger's, in a pod."""
    described = {**DESCRIBED, "schema": {"columns": {"user": "texts"}}}

    with pytest.raises(UsageError, match="what the check has found of the data cannot be read"):
        opening.begin(SETTINGS, tmp_path, described)
