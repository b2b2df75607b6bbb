"""Requests and answers of KServe's v2 protocol, as arrays and bytes; whatever comes is answered."""

import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tools.strict_json import strict
from tools.turns import examples

from edl.distill.kserve.tensors import DTYPES, listed_part
from edl.proto import kserve_pb2 as pb
from edl.serve.export_parts import json_of
from edl.serve.kserve import answers, listed, tensors
from edl.serve.kserve.refused import Refused, Why
from edl.serve.servable import Column

X, DAY, TEXT = Column("x", "FP32", (2,)), Column("day", "INT8", ()), Column("t", "BYTES", (-1,))
OUT = (Column("sum", "FP32", ()), Column("name", "BYTES", ()))


def tensor(column=X, shape=(1, 2), data=(1.5, 2), **more):
    told = {"name": column.name, "datatype": column.datatype, "shape": list(shape), **more}
    return told if data is None else {**told, "data": data}


def body(*inputs, raw=b"", **more):
    head = json.dumps({"inputs": list(inputs), **more}).encode()
    return head + raw, str(len(head)) if raw else ""


def read(*inputs, columns=(X,), raw=b"", **more):
    return tensors.from_http(*body(*inputs, raw=raw, **more), columns, OUT)


@pytest.mark.parametrize("data", [[1.5, 2, 3, 4], [[1.5, 2], [3, 4]]])
def test_values_are_flat_or_nested(data):
    question = read(tensor(shape=(2, 2), data=data), id="7")

    np.testing.assert_array_equal([[1.5, 2], [3, 4]], question.inputs["x"])
    assert (np.float32, 2, "7") == (question.inputs["x"].dtype, question.rows, question.id)


def test_bytes_behind_the_json_are_values_and_may_be_written_into():
    values = np.array([[1, 2], [3, 4]], np.float32)

    question = read(
        tensor(shape=(2, 2), data=None, parameters={"binary_data_size": 16}), raw=values.tobytes()
    )

    np.testing.assert_array_equal(values, question.inputs["x"])
    assert question.inputs["x"].flags.writeable


def test_texts_come_as_json_or_as_bytes_with_their_lengths():
    texts = ["", "zwölf"]
    raw = b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts)
    told = {"binary_data_size": len(raw)}

    listed = read(tensor(TEXT, (1, 2), texts), columns=(TEXT,))
    packed = read(tensor(TEXT, (1, 2), None, parameters=told), columns=(TEXT,), raw=raw)

    expected = [[t.encode() for t in texts]]
    assert expected == listed.inputs["t"].tolist() == packed.inputs["t"].tolist()


REFUSED = {
    "no object": (b"[]", "", "no JSON of the protocol"),
    "no JSON": (b'{"inputs": [', "", "no JSON of the protocol"),
    "no UTF-8": (b'{"inputs": "\xff"}', "", "no JSON of the protocol"),
    "deep": (b'{"inputs":' + b"[" * 100000, "", "no JSON of the protocol"),
    "no inputs": (b"{}", "", "it has no 'inputs'"),
    "header no number": (b"{}", "1e3", "is no number"),
    "header too large": (b"{}", "3", "is 3, and the body has 2 bytes"),
    "missing": (*body(), "the input 'x' is missing: the model takes 'x' \\(FP32 \\[-1, 2\\]\\)"),
    "unknown": (*body(tensor(DAY)), "no input 'day': the model takes 'x'"),
    "twice": (*body(tensor(), tensor()), "'x' is there twice"),
    "other type": (
        *body(tensor(datatype="INT64")),
        "is INT64 \\[1, 2\\], and the model takes FP32",
    ),
    "other shape": (*body(tensor(shape=[1, 3])), "is FP32 \\[1, 3\\], and the model takes"),
    "no batch axis": (*body(tensor(shape=[2])), "is FP32 \\[2\\], and the model takes"),
    "shape of text": (*body(tensor(shape=["1", 2])), "has the shape"),
    "shape below 0": (*body(tensor(shape=[-1, 2])), "has the shape"),
    "no rows": (*body(tensor(shape=[0, 2], data=[])), "has 0 rows"),
    "many rows": (*body(tensor(shape=[1 << 40, 2], data=[])), "rows: ask about 1 to"),
    "few values": (*body(tensor(data=[1.0])), "has 1 values instead of 2"),
    "text for number": (*body(tensor(data=["1", 2])), 'has the value "1"'),
    "bool for number": (*body(tensor(data=[True, 2])), "has the value true"),
    "nested otherwise": (*body(tensor(data=[[1.0, 2, 3]])), "nested otherwise"),
    "no list": (*body(tensor(data="ab")), "is no list"),
    "no data": (*body(tensor(data=None)), "neither data nor binary_data_size"),
    "size of text": (*body(tensor(parameters={"binary_data_size": "8"})), "binary_data_size 8"),
    "size beyond": (*body(tensor(parameters={"binary_data_size": 9}), raw=b"12345678"), "8 bytes"),
    "other size": (*body(tensor(parameters={"binary_data_size": 4}), raw=b"1234"), "instead of 8"),
    "bytes of none": (*body(tensor(), raw=b"1234"), "4 bytes that are of no input"),
    "infinity of a number": (
        *body(tensor(parameters={"not_finite": "0:inf"})),
        "input 'x': not_finite says '0:inf', and there is no null",
    ),
    "unknown output": (*body(tensor(), outputs=[{"name": "y"}]), "no output 'y': the model has"),
}


@pytest.mark.parametrize(("said", "header", "told"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_with_what_was_expected(said, header, told):
    with pytest.raises(Refused, match=told) as refused:
        tensors.from_http(said, header, (X,), OUT)

    assert Why.INVALID == refused.value.why


@pytest.mark.parametrize("told", [None, float("nan")])
def test_a_missing_number_is_null_or_nan_where_the_column_has_floats(told):
    question = read(tensor(shape=(2, 2), data=[[told, 2], [3, 4.5]]))

    np.testing.assert_array_equal([[np.nan, 2], [3, 4.5]], question.inputs["x"])
    with pytest.raises(Refused, match="'day' of INT8 has the value null: say what stands for"):
        read(tensor(DAY, [1], [None]), columns=(DAY,))


@pytest.mark.parametrize("value", [128, 10**400])
def test_a_number_that_a_type_cannot_hold_is_refused(value):
    with pytest.raises(Refused, match="a value that INT8 cannot hold"):
        read(tensor(DAY, [1], [value]), columns=(DAY,))


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"\x01\0", "2 bytes, too few for 1 texts"),
        (b"\x02\0\0\0a", "end in the midst of a text"),
        (b"\xff\xff\xff\xff", "end in the midst of a text"),
        (b"\x01\0\0\0ab", "1 bytes behind its 1 texts"),
    ],
)
def test_texts_whose_bytes_do_not_fit_are_refused(raw, told):
    size = {"binary_data_size": len(raw)}

    with pytest.raises(Refused, match=told):
        read(tensor(TEXT, (1, 1), None, parameters=size), columns=(TEXT,), raw=raw)


def test_inputs_of_unequal_rows_are_refused():
    with pytest.raises(Refused, match="'day' has 3 rows, and 'x' has 1"):
        read(tensor(), tensor(DAY, [3], [1, 2, 3]), columns=(X, DAY))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "datatype", "shape", "data", "parameters", "binary_data_size"]
            ),
            each,
            max_size=4,
        )
    ),
    max_leaves=8,
)
INPUTS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "day", "t", "?"]),
        "datatype": st.sampled_from(["FP32", "INT8", "BYTES", "FP16", ""]),
        "shape": st.lists(st.integers(-1, 4), max_size=3) | JSON,
    },
    optional={
        "data": JSON,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(-1, 20) | JSON}),
    },
)


@settings(max_examples=examples(150), deadline=None)
@given(
    told=st.fixed_dictionaries({"inputs": st.lists(INPUTS, max_size=3)}, optional={"outputs": JSON})
    | JSON,
    raw=st.binary(max_size=20),
    header=st.sampled_from(["right", "", "0", "3", "-1", "x", "9" * 40]),
)
@example(
    {"inputs": [{"name": "t", "datatype": "BYTES", "shape": [1, 1], "data": ["\ud800"]}]}, b"", ""
)
def test_whatever_comes_over_http_is_a_question_or_a_refusal(told, raw, header):
    head = json.dumps(told).encode()
    nbytes = str(len(head)) if header == "right" else header

    with contextlib.suppress(Refused):
        question = tensors.from_http(head + raw, nbytes, (X, DAY, TEXT), OUT)
        assert {question.rows} == {len(array) for array in question.inputs.values()}


@settings(max_examples=examples(150), deadline=None)
@given(st.binary(max_size=60), st.lists(st.binary(max_size=9), max_size=3))
def test_whatever_comes_over_grpc_is_a_question_or_a_refusal(noise, raw):
    message = pb.InferRequest(raw_input_contents=raw)
    with contextlib.suppress(Exception):  # protobuf's own: such bytes are refused by gRPC
        message.MergeFromString(noise)
    for column in (X, DAY, TEXT):
        message.inputs.add(name=column.name, datatype=column.datatype, shape=[1, *column.shape])

    with contextlib.suppress(Refused):
        question = tensors.from_message(message, (X, DAY, TEXT), OUT)
        assert {question.rows} == {len(array) for array in question.inputs.values()}


@pytest.mark.parametrize("datatype", [*DTYPES, "BYTES"])
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_values_of_each_type_survive_each_way(datatype, data):
    shape = (2, 3)
    if datatype == "BYTES":
        texts = data.draw(st.lists(st.text(max_size=4).map(str.encode), min_size=6, max_size=6))
        values = np.empty(6, object)
        values[:] = texts
        values = values.reshape(shape)
    else:
        dtype = DTYPES[datatype]
        values = data.draw(arrays.arrays(dtype, shape, elements=arrays.from_dtype(dtype)))
    column = Column("v", datatype, (3,))
    question = tensors.Question({}, 2, {}, False, "")

    head, _ = answers.as_http({"v": values}, question, "m", "1")
    listed = strict(head)["outputs"][0]
    raw = answers.packed(values)
    message = pb.InferRequest(raw_input_contents=[raw])
    message.inputs.add(name="v", datatype=datatype, shape=shape)

    for found in (
        tensors.from_http(*body(listed), [column], []),
        tensors.from_message(message, [column], []),
    ):
        np.testing.assert_array_equal(values, found.inputs["v"])
        assert datatype == tensors.datatype_of(found.inputs["v"])


def test_of_a_listed_output_nan_and_infinities_are_null_and_told_beside():
    outputs = {"sum": np.array([np.nan, 1, np.inf, -np.inf], np.float32)}

    head, _ = answers.as_http(outputs, tensors.Question({}, 4, {}, False, ""), "m", "1")

    (told,) = strict(head)["outputs"]
    assert [None, 1.0, None, None] == told["data"]
    assert {"not_finite": "0:nan,2:inf,3:-inf"} == told["parameters"]
    part = listed_part("sum", "FP32", [4], told["data"], told["parameters"]["not_finite"])
    np.testing.assert_array_equal(outputs["sum"], part.values)


def test_an_example_of_an_exported_model_is_strict_and_a_request():
    values = np.array([[np.nan, 1], [np.inf, 0]], np.float32)

    told = strict(json.dumps(json_of(X, values)))

    np.testing.assert_array_equal(values, read(told).inputs["x"])


def test_the_outputs_that_are_asked_for_come_in_that_order_each_as_it_was_asked_for():
    outputs = {"sum": np.ones(1, np.float32), "name": np.array(["é"])}
    question = tensors.Question({}, 1, {"name": True, "sum": False}, False, "")

    head, bodies = answers.as_http(outputs, question, "m", "3")

    told = json.loads(head)
    assert ("m", "3") == (told["model_name"], told["model_version"])
    assert [
        {"name": "name", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}},
        {"name": "sum", "datatype": "FP32", "shape": [1], "data": [1.0]},
    ] == told["outputs"]
    assert [b"\x02\0\0\0\xc3\xa9"] == bodies


@pytest.mark.parametrize("datatype", ["FP32", "INT8", "BYTES"])
def test_what_is_read_and_written_in_pieces_is_what_it_is_at_once(datatype, monkeypatch):
    column = Column("v", datatype, (2,))
    told = tensor(
        column, (3, 2), ["a", "ü", "", "b", "c", "d"] if datatype == "BYTES" else [*range(6)]
    )
    at_once = tensors.from_http(*body(told), [column], []).inputs["v"]
    question = tensors.Question({}, 3, {}, False, "")
    written, _ = answers.as_http({"v": at_once}, question, "m", "1")

    monkeypatch.setattr(listed, "AT_ONCE", 4)
    message = pb.InferRequest(model_name="m")
    sent = message.inputs.add(name="v", datatype=datatype, shape=(3, 2))
    fields = {"FP32": "fp32_contents", "INT8": "int_contents", "BYTES": "bytes_contents"}
    getattr(sent.contents, fields[datatype]).extend(at_once.reshape(-1).tolist())
    pieces = tensors.from_http(*body(told), [column], []).inputs["v"]
    of_message = tensors.from_message(message, [column], []).inputs["v"]

    assert at_once.tolist() == pieces.tolist() == of_message.tolist()
    assert at_once.dtype == pieces.dtype == of_message.dtype
    assert json.loads(written)["outputs"][0] == told
    assert written == answers.as_http({"v": pieces}, question, "m", "1")[0]


def test_a_value_that_is_none_is_found_in_whatever_piece_it_is(monkeypatch):
    monkeypatch.setattr(listed, "AT_ONCE", 4)

    with pytest.raises(Refused, match=r"'x' of FP32 has the value \"x\""):
        read(tensor(shape=(3, 2), data=[1, 2, 3, 4, 5, "x"]))
    with pytest.raises(Refused, match="has a value that INT8 cannot hold"):
        read(tensor(DAY, (6,), [1, 2, 3, 4, 5, 128]), columns=(DAY,))
