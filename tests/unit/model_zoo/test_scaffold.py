"""`edl zoo init` makes a folder that trains at once."""

import re

import pytest

from edl.common.errors import UsageError
from edl.data.open import open_reader
from edl.data.reader import take
from edl.model_zoo.check import check_definition
from edl.model_zoo.scaffold import init_definition
from edl.model_zoo.spec import load_definition


def records_of(path):
    reader = open_reader(str(path))
    (source,) = reader.sources()
    return reader.read(source.name, 0, source.records)


def test_new_definition_is_sound_and_learns(tmp_path, train):
    folder = tmp_path / "zoo"
    init_definition(folder, "clicks")
    definition = load_definition("clicks", str(folder))
    records, test = records_of(folder / "train.csv"), records_of(folder / "test.csv")

    findings = check_definition(definition, take(records, slice(0, 32)))
    reached = train(definition, records, test, 2, 64)

    assert [f for f in findings if f.level != "ok"] == []
    assert reached["auc"] >= 0.85, reached


def test_readme_has_the_command_for_this_very_folder(tmp_path):
    files = init_definition(tmp_path, "clicks")
    text = (tmp_path / "README.md").read_text()
    named = re.findall(r"--(?:training|validation)_data (\S+)", text)

    assert f"edl train --model_zoo {tmp_path} --model_def clicks" in text
    assert set(named) == {str(f) for f in files if f.suffix == ".csv"}
    assert "{" not in text


def test_files_that_are_there_are_never_overwritten(tmp_path):
    init_definition(tmp_path, "clicks")

    with pytest.raises(UsageError, match=r"clicks\.py.* is there already"):
        init_definition(tmp_path, "clicks")


def test_name_that_is_no_module_name_is_told(tmp_path):
    with pytest.raises(UsageError, match="'my-model' is no name of a Python module"):
        init_definition(tmp_path, "my-model")


def test_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="cannot be written"):
        init_definition(tmp_path / "file" / "zoo", "clicks")
