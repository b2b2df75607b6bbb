"""The page's files, as they are served."""

import pytest

from edl.dashboard import page_files


def test_the_page_knows_what_it_must_send_with_an_action():
    assert '<meta name="edl-csrf" content="abc">' in page_files.index("abc")


def test_only_the_pages_files_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(page_files, "FOLDER", tmp_path / "page")
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "app.css").write_text("body {}")
    (tmp_path / "secret.js").write_text("")
    (tmp_path / "page" / "notes.txt").write_text("")

    assert (b"body {}", "text/css; charset=utf-8") == page_files.read("app.css")


@pytest.mark.parametrize(
    "name", ["../secret.js", "nothing.js", "", ".", "..", "app.css/..", "notes.txt", "/etc/passwd"]
)
def test_what_is_none_of_the_pages_files_is_not_there(name):
    assert page_files.read(name) is None
