"""What a reader of one's own gives is brought to the schema, or refused by record and column."""

import numpy as np
import pytest

from edl.common.errors import RecordError
from edl.data.held import HeldReader
from edl.data.reader import Columns, Source
from edl.data.schema import Schema

pytestmark = pytest.mark.fast

SCHEMA = Schema.from_json({"columns": {"n": "int64", "t": "text", "l": "list of int64"}})


class Own:
    def __init__(self, columns):
        self.columns = columns

    def sources(self):
        return [Source("a", 4)]

    def read(self, source, start, end, skip=()):
        numbers = [number for number in range(start, end) if number not in skip]
        if isinstance(self.columns, list):
            return [self.columns[number] for number in numbers]
        return Columns({name: values[numbers] for name, values in self.columns.items()})


def test_columns_get_the_types_of_the_schema():
    own = Own({"n": np.array([1, 2, 3, 4], np.int32), "x": np.ones(4)})

    read = HeldReader(own, SCHEMA).read("a", 1, 4, {2})

    assert ("int64", [2, 4]) == (read["n"].dtype.name, read["n"].tolist())
    assert [1.0, 1.0] == read["x"].tolist()


@pytest.mark.parametrize(
    "columns",
    [
        {"t": np.array(["a", "b", 3, "d"], object)},
        [{"t": "a"}, {}, {"t": 3}, {"t": "d"}],
    ],
    ids=["columns", "dicts"],
)
def test_a_value_that_cannot_be_is_a_broken_record_of_its_number(columns):
    held = HeldReader(Own(columns), SCHEMA)

    with pytest.raises(RecordError, match="'t' is text, and 3") as raised:
        held.read("a", 1, 4, {1})
    assert 2 == raised.value.record
    if isinstance(columns, list):
        assert [{}, {"t": "d"}] == held.read("a", 1, 4, {2})


def test_records_that_are_dicts_keep_their_form():
    read = HeldReader(Own([{"n": np.int8(1), "l": [1, 2], "x": object}]), SCHEMA).read("a", 0, 1)

    assert (1, [1, 2]) == (read[0]["n"], read[0]["l"].tolist())
    assert object is read[0]["x"]


def test_other_records_are_none_of_the_schemas_business():
    assert [b"a", (1, 2)] == HeldReader(Own([b"a", (1, 2)]), SCHEMA).read("a", 0, 2)
