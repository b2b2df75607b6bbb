"""A file or a folder of a job on its way to `edl cp`: whole, in its place, or not at all."""

from __future__ import annotations

import io
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.common.errors import JobError, UsageError
from edl.jobs import transfer


@pytest.fixture
def root(tmp_path):
    """Make a job's folder."""
    made = tmp_path / "job"
    (made / "checkpoints" / "version-1").mkdir(parents=True)
    (made / "checkpoints" / "version-1" / "state").write_bytes(os.urandom(3 << 20))
    (made / "settings.json").write_text(json.dumps({"a": 1}))
    return made


def sent(root, path, **more) -> bytes:
    out = io.BytesIO()
    transfer.send(root, path, out, **more)
    return out.getvalue()


def received(data: bytes, target, size: int = 7919) -> int:
    return transfer.receive(iter([data[i : i + size] for i in range(0, len(data), size)]), target)


@pytest.mark.parametrize(
    "path", ["settings.json", "checkpoints", "checkpoints/../checkpoints", "."]
)
def test_what_is_copied_is_what_was_there(root, tmp_path, path):
    target = tmp_path / "copy"

    assert transfer.copy(root, path, target) > 0

    def content(top):
        files = (
            [top] if top.is_file() else sorted(each for each in top.rglob("*") if each.is_file())
        )
        return [(str(each.relative_to(top)), each.read_bytes()) for each in files]

    assert content(target) == content((root / path).resolve())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy", "job"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("../other", r"\.\./other leads out of the job's folder: leave out '\.\.'"),
        ("checkpoints/version-2", "There is no checkpoints/version-2 .*there are: version-1"),
        ("/etc/passwd", "/etc/passwd is not relative to the job's folder"),
    ],
)
def test_a_path_that_cannot_be_is_one_sentence_and_nothing_is_written(root, tmp_path, path, said):
    with pytest.raises(UsageError, match=said):
        transfer.copy(root, path, tmp_path / "copy")

    assert sorted(each.name for each in tmp_path.iterdir()) == ["job"]


def test_in_a_pod_an_absolute_path_is_of_its_volumes(root, tmp_path):
    (tmp_path / "data").write_text("records")

    received(sent(root, str(tmp_path / "data"), also=[tmp_path]), tmp_path / "copy")

    assert (tmp_path / "copy").read_text() == "records"


def test_what_stands_there_is_replaced_only_where_that_is_said(root, tmp_path):
    (tmp_path / "settings.json").write_text("mine")

    with pytest.raises(UsageError, match="settings.json is there already: say --force"):
        transfer.place_for("settings.json", str(tmp_path), force=False)
    transfer.copy(root, "settings.json", transfer.place_for("settings.json", str(tmp_path), True))

    assert (tmp_path / "settings.json").read_text() == (root / "settings.json").read_text()


def test_a_folder_to_copy_into_has_to_be_there(tmp_path):
    with pytest.raises(UsageError, match=f"There is no folder {tmp_path}/none: make it first"):
        transfer.place_for("a", str(tmp_path / "none" / "a"), force=False)


def test_what_broke_off_or_was_changed_is_never_taken_for_whole(root, tmp_path_factory):
    whole = sent(root, "settings.json")
    target = tmp_path_factory.mktemp("into") / "copy"

    @given(st.data())
    def damaged(data):
        place = data.draw(st.integers(0, len(whole) - 1))
        cut = data.draw(st.booleans())
        changed = bytes([whole[place] ^ data.draw(st.integers(1, 255))])
        broken = whole[:place] if cut else whole[:place] + changed + whole[place + 1 :]
        with pytest.raises((JobError, UsageError)):
            received(broken, target)
        assert list(target.parent.iterdir()) == []

    damaged()


def test_a_file_that_vanishes_on_the_way_spoils_the_copy(root, tmp_path, monkeypatch):
    add = transfer.tarfile.TarFile.addfile

    def vanish(archive, member, *rest):
        if member.isfile():
            raise FileNotFoundError(2, "No such file or directory", member.name)
        return add(archive, member, *rest)

    monkeypatch.setattr(transfer.tarfile.TarFile, "addfile", vanish)
    data = sent(root, "checkpoints")

    with pytest.raises(JobError, match="broke off or is damaged"):
        received(data, tmp_path / "copy")


@pytest.mark.parametrize("said", ["demo", ":checkpoints", ""])
def test_a_source_is_a_job_and_a_path(said):
    with pytest.raises(UsageError, match="say JOB:PATH, as in demo:checkpoints"):
        transfer.split(said)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../../etc/passwd", "out/passwd", "out", "/data/../etc"]
)
def test_of_a_pod_nothing_is_sent_but_what_lies_in_its_jobs_folder_and_volumes(tmp_path, path):
    root, data = tmp_path / "job", tmp_path / "data"
    for each in (root, data):
        each.mkdir()
        (each / "file").write_text(each.name)
    (root / "out").symlink_to("/etc")
    path = path.replace("/data", str(data))

    with pytest.raises(UsageError, match="out of the job's folder and its volumes"):
        transfer.find(root, path, also=[root, data])
    assert transfer.find(root, str(data / "file"), also=[root, data]).read_text() == "data"
    assert transfer.find(root, "file", also=[root, data]).read_text() == "job"
