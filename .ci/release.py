"""Tag a release: `make release VERSION=0.1.0`. CONTRIBUTING.md has the steps before and after.

It refuses a working tree with changes, a version that the package, the changelog or the manifests
do not have, and a tag that exists. Then it runs the checks, and tags the commit. It pushes nothing.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

CHECKS = (["make", "docs"], ["make", "test-all"])


class NotReady(Exception):
    """The repository cannot be released as it is; the text says what to do."""


def main() -> None:
    """Tag the repository of the current folder, or say in one line why not, with exit code 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", help="without the v of the tag: 0.1.0")
    version = parser.parse_args().version
    try:
        release(Path.cwd(), version)
    except NotReady as error:
        sys.exit(f"release: error: {error}")
    print(f"v{version} is tagged. To publish it: git push origin v{version}")


def release(root: Path, version: str) -> None:
    """Check the repository and tag its commit. Raises NotReady."""
    check(root, version)
    for command in CHECKS:
        if subprocess.run(command, check=False, cwd=root).returncode:
            raise NotReady(f"`{' '.join(command)}` failed: nothing is tagged")
    _must_be_clean(root)  # the checks themselves may have written something
    _git(root, "tag", "--annotate", f"v{version}", "--message", f"edl {version}")


def check(root: Path, version: str) -> None:
    """Compare all that names a version. Raises NotReady for the first that does not fit."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise NotReady(f"{version!r} is no version: give three numbers, such as 0.1.0")
    _must_be_clean(root)
    if _git(root, "tag", "--list", f"v{version}"):
        raise NotReady(f"v{version} is tagged already: give the next version")
    here = re.search(r'^__version__ = "(.*)"$', (root / "__init__.py").read_text(), re.MULTILINE)
    if here is None or here[1] != version:
        raise NotReady(f"__init__.py says {here and here[1]}: set __version__ to {version} there")
    _check_changelog((root / "CHANGELOG.md").read_text(), version)
    for path in sorted((root / "k8s/manifests").rglob("*")):
        if path.is_file() and (others := set(_images(path)) - {version}):
            raise NotReady(f"{path.relative_to(root)} names the image edl:{others.pop()}")


def _check_changelog(text: str, version: str) -> None:
    """Check that the version has a dated section and that all is in it; else raise NotReady."""
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    title, _, unreleased = sections[0].partition("\n")
    if title != "[Unreleased]" or unreleased.strip():
        raise NotReady(
            f"CHANGELOG.md: move what is below [Unreleased] to [{version}], and keep [Unreleased], "
            "empty, as the first section"
        )
    if not re.match(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n", "".join(sections[1:2])):
        raise NotReady(f"CHANGELOG.md: the second section must be [{version}] - YEAR-MONTH-DAY")


def _images(path: Path) -> list[str]:
    return re.findall(r"\bedl:(\d+\.\d+\.\d+)\b", path.read_text(errors="replace"))


def _must_be_clean(root: Path) -> None:
    """Raise NotReady where a file is changed or untracked."""
    if changed := _git(root, "status", "--porcelain"):
        raise NotReady(f"commit or remove first: {changed.splitlines()[0].strip()}")


def _git(root: Path, *arguments: str) -> str:
    """Return what git prints. Raises NotReady with git's own words where it fails."""
    command = ["git", *arguments]
    done = subprocess.run(command, check=False, cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise NotReady(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
