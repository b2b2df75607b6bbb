"""What a user declares of columns: a file, as it is printed, or a mapping."""

import json

import pytest

from edl.common.errors import UsageError
from edl.data.schema import DECLARED, SEEN, Field, Schema, Type
from edl.data.schema_given import of_params, schema_given

pytestmark = pytest.mark.fast

SHORT = {"user": "text", "007": "int64", "yes": "list of 3 float32"}


@pytest.mark.parametrize(
    "text",
    [
        "user: text\n007: int64\nyes: list of 3 float32\n",
        json.dumps(SHORT),
        json.dumps({"format": 1, "columns": {name: {"type": t} for name, t in SHORT.items()}}),
        (
            "\ufeffcolumns:\n  user: {type: text, found: stored in the file, why: so}\n"
            "  007: int64\n  yes: list of 3 float32\n"
        ),
    ],
    ids=["yaml", "json", "whole", "printed"],
)
def test_a_file_says_the_types_of_columns_by_their_names(tmp_path, text):
    path = tmp_path / "schema.yaml"
    path.write_text(text)

    found = schema_given(path)

    assert SHORT == {each.name: str(each.type) for each in found}
    assert {(DECLARED, "")} == {(each.found, each.why) for each in found}
    assert found == schema_given(SHORT) == schema_given(json.dumps(SHORT)) == schema_given(found)


def test_a_column_may_be_called_columns():
    assert ("columns", "format") == schema_given({"columns": "text", "format": "int64"}).names


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("/nowhere/schema.yaml", "--schema: /nowhere/schema.yaml cannot be read: No such file"),
        ({"a": "texts"}, "--schema cannot be read: the column 'a': 'texts' is no type"),
        ({7: "text"}, "a column's name is a text, not 7: quote it"),
        ({"a": None}, "the column 'a' has no type"),
        ('{"a": "text", "a": "int64"}', "gives 'a' twice"),
        (7, "takes a file or a mapping of COLUMN: TYPE, not 7"),
    ],
)
def test_what_declares_nothing_is_refused_in_a_sentence(given, sentence):
    with pytest.raises(UsageError, match=sentence):
        schema_given(given)


def test_a_name_that_stands_twice_in_a_file_is_refused(tmp_path):
    path = tmp_path / "schema.yaml"
    path.write_text("a: text\nb: text\na: int64\n")

    with pytest.raises(UsageError, match="'a' is given twice"):
        schema_given(str(path))


def test_dtypes_declare_as_well():
    found = of_params({"dtypes": "user:str|age:float64|odd:complex"})

    assert {"user": "text", "age": "float64"} == {each.name: str(each.type) for each in found}
    assert found == of_params({"dtypes": {"user": "str", "age": "float64"}})


def test_schemas_are_joined_column_by_column():
    one = Schema((Field("a", Type("text")),))
    other = Schema((Field("b", Type("bool"), found=SEEN), Field("a", Type("int64"))))

    assert [("a", "text"), ("b", "bool")] == [(f.name, str(f.type)) for f in one.joined(other)]
