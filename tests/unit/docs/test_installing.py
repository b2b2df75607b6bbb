"""No text tells to install a distribution that is not ours, or an extra that there is not."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from edl.common.extras import DISTRIBUTION, install

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"].keys()
OURS = re.compile(r"pip install[^\n]*? '?(?:\.|edl-trainer)\[([\w,]+)\]")
STRANGERS = re.compile(r"""pip install[^\n`]*?[ '"]edl(?![\w-])|(?<![\w.-])edl\[([\w,]+)\]""")


def texts() -> list[tuple[str, str]]:
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in names.split("\0") if name]
    kinds = {".py", ".md", ".ipynb", ".yaml", ".yml", ".toml", ".txt", ".sh", ""}
    return [
        (str(path.relative_to(ROOT)), path.read_text(errors="replace"))
        for path in paths
        if path.suffix in kinds and path.is_file() and path != Path(__file__)
    ]


def strangers(text: str) -> list[str]:
    """Return what tells to install a distribution by the name of the import."""
    found = STRANGERS.finditer(text)
    return [m[0] for m in found if m[1] is None or set(m[1].split(",")) <= EXTRAS]


def test_no_text_tells_to_install_what_is_a_strangers():
    assert {} == {name: found for name, text in texts() if (found := strangers(text))}


def test_the_extras_that_texts_name_are_there():
    named = {each for _, text in texts() for m in OURS.finditer(text) for each in m[1].split(",")}

    assert {"serve", "parquet"} <= named <= EXTRAS
    assert DISTRIBUTION == PROJECT["name"]


def test_an_error_tells_to_install_what_is_ours():
    said = install("serve", "parquet")

    assert [] == strangers(said)
    assert ["serve,parquet"] == [m[1] for m in OURS.finditer(said)]


@pytest.mark.parametrize(
    "text", ["pip install edl", "`pip install -U 'edl[serve]'`", "pip install edl==1", "edl[serve]"]
)
def test_a_text_that_does_is_found(text):
    assert strangers(text)
