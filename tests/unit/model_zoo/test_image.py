"""`edl zoo build` and `push`, with a program in docker's place that records its arguments."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from edl.cli import main as cli
from edl.common.errors import ImageError, UsageError
from edl.model_zoo import image

FAKE = """#!{python}
import json, pathlib, sys
record = dict(arguments=sys.argv[1:], dockerfile="")
if "--file" in sys.argv:
    record["dockerfile"] = pathlib.Path(sys.argv[sys.argv.index("--file") + 1]).read_text()
with open({record!r}, "a") as file:
    file.write(json.dumps(record) + "\\n")
print({stderr!r}, file=sys.stderr)
sys.exit({codes!r}.get(sys.argv[1], 0))
"""


class Engines:
    """Programs on an otherwise empty PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, stderr: str = "", **codes: int) -> None:
        """Install a program that ends with `codes[first argument]`."""
        path = self.folder / name
        record = str(self.folder / f"{name}.jsonl")
        path.write_text(
            FAKE.format(python=sys.executable, record=record, stderr=stderr, codes=codes)
        )
        path.chmod(0o755)

    def calls(self, name: str) -> list[dict[str, object]]:
        """Return what a program was asked for, the probe left out."""
        record = self.folder / f"{name}.jsonl"
        lines = [json.loads(line) for line in record.read_text().splitlines()]
        return [line for line in lines if line["arguments"][0] != "version"]


@pytest.fixture
def engines(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return Engines(folder)


@pytest.fixture
def zoo(tmp_path):
    folder = tmp_path / "zoo"
    folder.mkdir()
    (folder / "mine.py").write_text("def model(): ...\n")
    return folder


def test_a_folder_is_built_on_top_of_edls_own_image(engines, zoo, capfd):
    engines.install("docker")

    assert cli.run(["zoo", "build", str(zoo), "--image", "mine:1"]) == 0
    (call,) = engines.calls("docker")
    file = call["arguments"][2]
    assert call["arguments"] == ["build", "--file", file, "--tag", "mine:1", str(zoo)]
    assert f"FROM {image.BASE_IMAGE}\n" in call["dockerfile"]
    assert "requirements" not in call["dockerfile"]
    assert "edl zoo push mine:1" in capfd.readouterr().out


def test_the_rendered_dockerfile_is_gone_afterwards_and_the_folder_as_it_was(engines, zoo):
    engines.install("docker")

    image.build(zoo, "mine")

    (call,) = engines.calls("docker")
    assert not os.path.exists(call["arguments"][2])
    assert [path.name for path in zoo.iterdir()] == ["mine.py"]


def test_requirements_are_installed_also_from_another_index(zoo):
    (zoo / "requirements.txt").write_text("left-pad\n")

    text = image.dockerfile(zoo, "base:2", "https://index.example/simple")

    assert "FROM base:2\n" in text
    assert "--extra-index-url https://index.example/simple --requirement" in text


def test_a_dockerfile_of_the_folder_is_used_as_it_is(engines, zoo):
    (zoo / "Dockerfile").write_text("FROM scratch\n")
    engines.install("docker")

    image.build(zoo, "mine")

    assert [call["dockerfile"] for call in engines.calls("docker")] == ["FROM scratch\n"]


def test_buildah_does_where_dockers_engine_does_not_answer(engines, zoo):
    engines.install("docker", stderr="Cannot connect to the Docker daemon.", version=1)
    engines.install("buildah")

    image.build(zoo, "mine")

    assert engines.calls("docker") == []
    assert [call["arguments"][0] for call in engines.calls("buildah")] == ["build"]


def test_an_image_is_pushed(engines):
    engines.install("docker")

    assert cli.run(["zoo", "push", "team/mine:1"]) == 0
    assert [call["arguments"] for call in engines.calls("docker")] == [["push", "team/mine:1"]]


def test_without_a_program_it_says_what_to_install(engines, zoo, capsys):
    assert cli.run(["zoo", "build", str(zoo), "--image", "mine"]) == 1
    assert "needs docker or buildah" in capsys.readouterr().err


def test_an_engine_that_does_not_answer_is_told_in_its_own_words(engines, zoo, capsys):
    engines.install("docker", stderr="Cannot connect to the Docker daemon.", version=1)

    assert cli.run(["zoo", "push", "mine"]) == 1
    told = capsys.readouterr().err
    assert "docker is installed but does not answer (Cannot connect to the Docker daemon). " in told
    assert "install buildah" in told


def test_a_build_that_fails_fails(engines, zoo):
    engines.install("docker", build=17)

    with pytest.raises(ImageError, match="`docker build` failed with exit code 17"):
        image.build(zoo, "mine")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"extra_pypi_index": "https://me:secret@index.example/simple"}, "password"),
        ({"extra_pypi_index": "index.example"}, "no URL"),
        ({"base_image": "a\nRUN evil"}, "--base_image"),
        ({"base_image": "--privileged"}, "--base_image"),
    ],
)
def test_what_would_not_stay_in_its_place_is_refused(zoo, arguments, told):
    (zoo / "requirements.txt").write_text("left-pad\n")

    with pytest.raises(UsageError, match=told):
        image.dockerfile(zoo, **arguments)


def test_an_index_without_requirements_is_refused(zoo):
    with pytest.raises(UsageError, match=r"has no requirements\.txt"):
        image.dockerfile(zoo, extra_pypi_index="https://index.example/simple")


def test_a_base_image_beside_a_dockerfile_is_refused(zoo):
    (zoo / "Dockerfile").write_text("FROM scratch\n")

    with pytest.raises(UsageError, match="built as it is"):
        image.dockerfile(zoo, "base")


def test_a_folder_without_a_definition_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no definition"):
        image.dockerfile(tmp_path)


def test_dry_run_prints_the_dockerfile_and_needs_no_engine(engines, zoo, capsys):
    assert cli.run(["zoo", "build", str(zoo), "--image", "mine", "--dry_run"]) == 0
    assert "COPY --chown=1000:0 . /model_zoo" in capsys.readouterr().out
