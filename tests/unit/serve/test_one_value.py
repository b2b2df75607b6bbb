"""One value on all ways: what feed gets of a request is what it gets of a reader, bit for bit."""

import json
import types

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tools import asked as client
from tools.turns import examples

from edl.common.errors import UsageError
from edl.common.hashing import hash64
from edl.common.ragged import Ragged
from edl.data.reader import Columns
from edl.data.schema import Field, Schema, Type
from edl.serve.batcher import _joined
from edl.serve.columns import Asked
from edl.serve.from_checkpoint import DefinedServable, Sampled
from edl.serve.kserve import tensors
from edl.serve.kserve.refused import Refused, Why

INTS, MICROS = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63) + 1, 2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=6).filter(lambda t: not t.endswith("\0"))
TEXTS |= st.sampled_from(["007", "07", "7", "", " ", "NaN", "1e3", "00:00:01", "a,b", "\u0130"])
VALUES = {
    "bool": st.booleans(),
    "int64": INTS | st.sampled_from([2**53 + 1, -1, 0]),
    "uint64": st.integers(0, 2**64 - 1),
    "float32": st.floats(width=32),
    "float64": st.floats(),
    "decimal": st.decimals(-1000, 1000, places=3).map(float),
    "text": TEXTS,
    "bytes": TEXTS.map(str.encode) | st.binary(max_size=5),
    "timestamp": MICROS | st.just(-(2**63)),
    "date": st.integers(-1_000_000, 3_000_000) | st.just(-(2**63)),
    "duration": MICROS | st.just(-(2**63)),
}
SINGLE = ["timestamp in UTC", *VALUES]
TYPES = st.sampled_from([*SINGLE, *(f"list of {each}" for each in SINGLE), "list of 2 float32"])
ROWS = 3


def array_of(kind, values):
    """Return values as readers have them."""
    if kind in ("timestamp", "date", "duration"):
        return np.array(values, np.int64).view(Type(kind).dtype)
    if kind == "bytes":
        found = np.empty(len(values), object)
        found[:] = values
        return found
    return np.array(values, Type(kind).dtype)


@st.composite
def columns(draw, type_):
    lengths = [draw(st.integers(0, 3)) for _ in range(ROWS)] if type_.lists else [1] * ROWS
    if type_.shape:
        lengths = [*type_.shape] * ROWS
    values = VALUES[type_.kind]
    flat = draw(st.lists(values, min_size=sum(lengths), max_size=sum(lengths)))
    array = array_of(type_.kind, flat)
    return Ragged.of(array, np.array(lengths)) if type_.lists else array.reshape(ROWS, *type_.shape)


@st.composite
def tables(draw):
    """Draw a schema and the records of it."""
    types_ = [Type.parse(each) for each in draw(st.lists(TYPES, min_size=1, max_size=4))]
    fields = [Field(f"c{place}", each) for place, each in enumerate(types_)]
    return Schema(tuple(fields)), Columns({f.name: draw(columns(f.type)) for f in fields})


def served(schema, records, name="m"):
    """Return a servable of a feed that hashes ids and leaves floats, and what feed has got."""
    got = []

    def feed(records, mode):
        got.append(records)
        made = {}
        for column in schema.names:
            values = records[column]
            flat = values.values if isinstance(values, Ragged) else values
            flat = flat.astype(np.int64) if flat.dtype.kind in "Mm" else flat
            ids = flat if flat.dtype.kind == "f" else hash64(column, flat)
            lengths = values.lengths if isinstance(values, Ragged) else np.ones(len(values))
            sums = np.zeros((len(values), 4))
            if len(ids) == len(values):
                sums[:, 0] = np.nan_to_num(ids.reshape(len(values), -1)[:, 0].astype(np.float64))
            sums[:, 1] = lengths
            made[column] = torch.from_numpy(sums)
        return made, None

    definition = types.SimpleNamespace(feed=feed, name=name)
    model = torch.nn.Identity()
    model.forward = lambda features: sum(each.sum(1) for each in features.values())
    made = DefinedServable(name, "1", model, Sampled(definition, records, schema), {})
    got.clear()
    return made, got


def bits(values):
    """Return a column as what it is to the bit: its form, type, shape and values."""
    if isinstance(values, Ragged):
        return "lists", values.offsets.tolist(), bits(values.values)[:1], bits(values.values)[2:]
    kind = values.dtype.str if values.dtype.kind not in "U" else "U"
    if values.dtype.kind in "OU":
        return kind, values.shape, [(type(v), v) for v in values.ravel().tolist()]
    if values.dtype.kind == "f":  # one NaN, of many
        values = np.where(np.isnan(values), np.nan, values).astype(values.dtype)
    return kind, values.shape, values.tobytes()


def all_bits(records):
    return {name: bits(records[name]) for name in records.names}


def ways(made, records):
    """Give each way's name and the inputs of a servable that come by it."""
    nested, flat = (client.tensors(made.inputs, records, apart=apart) for apart in (False, True))
    numbers = client.tensors(made.inputs, records, apart=True, numbers=True)
    for name, sent in (("nested", nested), ("flat", flat), ("numbers", numbers)):
        try:
            body = client.as_json(sent)
        except UnicodeDecodeError:
            continue  # bytes that JSON has not
        yield f"json {name}", tensors.from_http(body, "", made.inputs, ()).inputs
    for name, sent in (("flat", flat), ("numbers", numbers)):
        yield f"bytes {name}", tensors.from_http(*client.as_bytes(sent), made.inputs, ()).inputs
        for raw in (False, True):
            message = client.as_message(sent, raw=raw)
            yield f"grpc {name} {raw}", tensors.from_message(message, made.inputs, ()).inputs
    yield "the reader's own", dict(records)


@settings(max_examples=examples(100))
@given(tables())
def test_feed_gets_on_each_way_what_it_gets_of_a_reader(table):
    """Broken once each: lengths of the row before, float64 by way of float32, NaT as 0, text
    without its leading zeros, bytes in another order.
    """
    schema, records = table
    made, got = served(schema, records)
    told = json.loads(json.dumps([made._asked.to_json(), schema.to_json()]))
    again = Asked.from_json(told[0], Schema.from_json(told[1]))
    expected, outputs = all_bits(records), made.infer(dict(records))["output"]
    got.clear()

    for way, inputs in ways(made, records):
        answer = made.infer(inputs)["output"]
        assert expected == all_bits(got.pop()), way
        assert outputs.tobytes() == answer.tobytes(), way
        assert expected == all_bits(again.records(inputs)), f"exported, {way}"


@settings(max_examples=examples(30))
@given(tables(), st.integers(1, 2))
def test_requests_of_one_batch_are_joined_to_the_records_that_they_were(table, cut):
    schema, records = table
    made, _ = served(schema, records)
    halves = [records.take(slice(0, cut)), records.take(slice(cut, ROWS))]

    parts = [[*dict(ways(made, half)).items()] for half in halves]

    for (way, one), (_, other) in zip(*parts, strict=False):
        whole = {c.name: _joined([one[c.name], other[c.name]]) for c in made.inputs}
        assert all_bits(records) == all_bits(made._asked.records(whole)), way


# What a request brings that its column cannot have, and the words of the refusal.
WRONG = [
    ("int64", "FP64", [1.5], "is FP64 \\[1\\], and the model takes INT64"),
    ("int64", "INT64", [1.5], "row 0 of the input 'x' of INT64 has the value 1.5"),
    ("int64", "INT64", ["7"], 'row 0 of .* has the value "7", which is a text: send INT64'),
    ("int64", "INT64", [2**63], "a value that INT64 cannot hold"),
    ("uint64", "UINT64", [-1], "a value that UINT64 cannot hold"),
    ("text", "BYTES", [7], "has the value 7, which is no text: send a text"),
    ("text", "BYTES", ["a\0"], "ends in NUL"),
    ("bool", "BOOL", [1], "has the value 1, which is a number that BOOL does not hold"),
    ("float32", "FP32", [1e39], "row 0 .* 1e\\+39, which is a number that FP32 does not hold"),
    ("float32", "FP32", [2**24 + 1], "the value 16777217, which is a number that FP32 does not"),
    ("float64", "FP64", [2**53 + 1], "9007199254740993, which is a number that FP64 does not"),
    ("timestamp", "BYTES", ["soon"], "row 0 .* is timestamp, and 'soon' is no time as .*: send"),
    ("timestamp", "BYTES", ["2026-01-01T00:00:00.0000001"], "finer than a microsecond"),
    ("timestamp", "BYTES", ["2026-01-01T00:00Z"], "with a time zone"),
    ("timestamp in UTC", "BYTES", ["2026-01-01T00:00"], "without a time zone: write Z"),
    ("timestamp", "BYTES", ["300000-01-01"], "beyond what 64 bits"),
    ("date", "BYTES", ["2026-02-30"], "is no day of the calendar"),
    ("duration", "BYTES", ["5"], "no duration as PT1H2M3.5S"),
    ("list of int64", "INT64", [[1], [2.5]], "row 1 of the input 'x' .* has the value 2.5"),
    ("list of text", "BYTES", [["a"], None], "row 1 of the input 'x' is null, so send the list"),
    ("list of text", "BYTES", ["a", "b"], "row 0 of the input 'x' is no list"),
]


@pytest.mark.parametrize(("type_", "datatype", "data", "told"), WRONG)
def test_what_a_column_cannot_have_is_refused_by_its_row_and_both_types(
    type_, datatype, data, told
):
    made, _ = served(*of(type_))
    shape = [len(data), -1] if made.inputs[0].is_lists else [len(data)]
    inputs = [{"name": "x", "datatype": datatype, "shape": shape, "data": data}]

    with pytest.raises(Refused, match=told) as refused:
        tensors.from_http(json.dumps({"inputs": inputs}).encode(), "", made.inputs, ())

    assert Why.INVALID is refused.value.why


def of(said, missing=None):
    """Return a schema of one column, and a record of it."""
    type_ = Type.parse(said)
    plain = {"text": "a", "bytes": b"a"}.get(type_.kind, 1)
    array = array_of(type_.kind, [plain] * 2)
    values = Ragged.of(array, np.array([2])) if type_.lists else array[:1]
    return Schema((Field("x", type_, missing),)), Columns({"x": values})


def asked_json(made, data, **more):
    """Return what feed gets of values in JSON."""
    column = made.inputs[0]
    inputs = [
        {"name": "x", "datatype": column.datatype, "shape": [len(data)], "data": data, **more}
    ]
    question = tensors.from_http(json.dumps({"inputs": inputs}).encode(), "", made.inputs, ())
    return made._asked.records(question.inputs)["x"]


@pytest.mark.parametrize(
    ("type_", "missing", "expected"),
    [
        ("float64", None, "nan"),
        ("float64", "0.5", "0.5"),
        ("int64", "-1", "-1"),
        ("text", None, ""),
    ],
)
def test_a_missing_value_becomes_what_the_schema_says(type_, missing, expected):
    made, _ = served(*of(type_, missing))

    assert [expected] == [str(each) for each in asked_json(made, [None])]


def test_a_missing_value_that_the_schema_refuses_is_refused():
    made, _ = served(*of("int64"))

    with pytest.raises(Refused, match="null: say what stands for a missing value in training"):
        asked_json(made, [None])


@pytest.mark.parametrize("token", ["1e400", "-1e400", "1e39"])
def test_a_number_beyond_its_type_is_refused_and_infinity_is_not(token):
    made, _ = served(*of("float32"))
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": ["@"]}]})

    with pytest.raises(Refused, match="FP32"):
        tensors.from_http(body.replace('"@"', token).encode(), "", made.inputs, ())

    assert [np.inf] == asked_json(made, [np.inf]).tolist()
    assert [np.inf] == asked_json(made, [None], parameters={"not_finite": "0:inf"}).tolist()


LISTS = [
    ("no lengths", [("x", [3], [1, 2, 3])], None, "does not say how long each is"),
    ("open", [("x", [3, -1], [1, 2, 3])], None, "does not say how long each is"),
    ("too many", [("x", [3], [1, 2, 3]), ("x.lengths", [2], [1, 1])], None, "says 1, 1"),
    ("below 0", [("x", [3], [1, 2, 3]), ("x.lengths", [2], [4, -1])], None, "says 4, -1"),
    ("wraps", [("x", [0], []), ("x.lengths", [2], [2**63 - 1, -(2**63) + 1])], None, "has 0 val"),
    ("alone", [("x.lengths", [2], [1, 1])], None, "input 'x' is missing"),
    ("twice", [("x", [1], [1]), ("x", [1], [1]), ("x.lengths", [1], [1])], None, "there twice"),
    ("nested too", [("x", [1, 1], [1]), ("x.lengths", [1], [1])], None, "its values are flat"),
    ("flat", [("x.lengths", [2], [1, 2]), ("x", [3], [1, 2, 3])], [[1], [2, 3]], ""),
    ("even", [("x", [2, 2], [1, 2, 3, 4])], [[1, 2], [3, 4]], ""),
    ("empty", [("x", [2, 0], [])], [[], []], ""),
]


@pytest.mark.parametrize(("sent", "expected", "told"), [each[1:] for each in LISTS])
def test_lists_come_flat_with_their_lengths_or_as_long_as_the_shape_says(sent, expected, told):
    made, _ = served(*of("list of int64"))
    sent = [client.Sent(name, "INT64", shape, values) for name, shape, values in sent]

    for read, args in (
        (tensors.from_http, client.as_bytes(sent)),
        (tensors.from_message, (client.as_message(sent, raw=True),)),
    ):
        if expected is None:
            with pytest.raises(Refused, match=told):
                read(*args, made.inputs, ())
        else:
            found = read(*args, made.inputs, ()).inputs["x"]
            assert (expected, np.int64) == (found.tolist(), found.values.dtype)


def test_a_model_tells_of_its_lists_and_of_the_input_of_their_lengths():
    made, _ = served(*of("list of text"))

    assert [
        {"name": "x", "datatype": "BYTES", "shape": [-1, -1]},
        {"name": "x.lengths", "datatype": "INT64", "shape": [-1]},
    ] == tensors.as_metadata(made.inputs)


def test_the_types_are_the_schemas_and_no_guess_by_a_sample():
    """The sample of a file has whole numbers only, where the training data had texts and halves."""
    schema = Schema((Field("zip", Type("text")), Field("size", Type("float64"))))
    sample = Columns({"zip": np.array(["2215", "94103"]), "size": np.array([1, 2])})

    made, _ = served(schema, sample)

    assert [("zip", "BYTES", ()), ("size", "FP64", ())] == [*made.inputs]
    with pytest.raises(UsageError, match=r"column 'zip' is text, and 2215 is a whole number"):
        served(schema, Columns({"zip": np.array([2215]), "size": np.array([1])}))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("2026-11-29T17:54:52.25+02:00", "2026-11-29T15:54:52.250000"),
        ("2026-11-29 12", "2026-11-29T12:00:00.000000"),
    ],
)
def test_a_time_with_a_zone_is_the_moment_that_it_means(said, expected):
    zone = "+" in said
    made, _ = served(*of("timestamp in UTC" if zone else "timestamp"))

    assert [expected] == asked_json(made, [said]).astype(str).tolist()
