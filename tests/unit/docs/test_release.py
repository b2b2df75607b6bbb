"""`.ci/release.py`, in a repository of the test's own whose checks are a Makefile's two lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import edl

SCRIPT = Path(edl.__file__).parent / ".ci/release.py"
CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.3] - 2030-01-31

Something new.

## [1.2.2] - 2029-12-31
"""
_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Somebody"), ("EMAIL", "somebody@example.com"))
}
_ENVIRONMENT = {**os.environ, **_IDENTITY, "GIT_CONFIG_GLOBAL": "/dev/null"}


@pytest.fixture
def repository(tmp_path):
    """Make a repository ready to be released as 1.2.3; checks leave their names in ../checks."""
    root = tmp_path / "repository"
    (root / "k8s/manifests").mkdir(parents=True)
    (root / "k8s/manifests/pod.yaml").write_text("image: edl:1.2.3\n")
    (root / "__init__.py").write_text('"""A package."""\n\n__version__ = "1.2.3"\n')
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    (root / "Makefile").write_text("docs test-all:\n\t@echo $@ >> ../checks\n")
    git(root, "init", "--quiet")
    commit(root)
    return root


def git(root, *arguments):
    done = subprocess.run(
        ["git", *arguments], cwd=root, env=_ENVIRONMENT, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def commit(root):
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "Change something")


def release(root, version="1.2.3"):
    """Run the script. Return its exit code and what it says of errors."""
    command = [sys.executable, str(SCRIPT), version]
    run = {"cwd": root, "env": _ENVIRONMENT, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **run)
    return done.returncode, done.stderr


def test_what_is_ready_passes_all_checks_and_is_tagged(repository):
    assert release(repository) == (0, "")

    assert (repository.parent / "checks").read_text().split() == ["docs", "test-all"]
    assert git(repository, "tag") == "v1.2.3"
    assert git(repository, "cat-file", "-t", "v1.2.3") == "tag"  # annotated
    assert git(repository, "rev-parse", "v1.2.3^{}") == git(repository, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        ("__init__.py", '__version__ = "1.2.2"\n', "__init__.py says 1.2.2"),
        ("CHANGELOG.md", CHANGELOG.replace("[1.2.3]", "[1.2.4]"), "must be [1.2.3]"),
        ("CHANGELOG.md", CHANGELOG.replace(" - 2030-01-31", ""), "must be [1.2.3]"),
        (
            "CHANGELOG.md",
            CHANGELOG.replace("[Unreleased]\n", "[Unreleased]\n\nMore.\n"),
            "move what is below [Unreleased]",
        ),
        ("k8s/manifests/pod.yaml", "image: edl:1.2.2\n", "pod.yaml names the image edl:1.2.2"),
        ("Makefile", "docs:\ntest-all:\n\t@false\n", "`make test-all` failed"),
        ("Makefile", "docs test-all:\n\t@touch $@.log\n", "commit or remove first: ?? docs.log"),
    ],
)
def test_what_is_not_ready_is_named_and_not_tagged(repository, file, text, error):
    (repository / file).write_text(text)
    commit(repository)

    code, said = release(repository)

    assert code == 1
    assert error in said
    assert git(repository, "tag") == ""


def test_changes_that_are_not_committed_are_named(repository):
    (repository / "new.py").touch()

    assert release(repository) == (1, "release: error: commit or remove first: ?? new.py\n")


def test_a_version_is_tagged_once(repository):
    release(repository)

    code, said = release(repository)

    assert (1, "release: error: v1.2.3 is tagged already: give the next version\n") == (code, said)


def test_a_version_has_three_numbers(repository):
    code, said = release(repository, "v1.2")

    assert code == 1
    assert "three numbers, such as 0.1.0" in said
