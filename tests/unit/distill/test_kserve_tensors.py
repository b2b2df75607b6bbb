"""Features as inputs of a model and its outputs as an answer, and the bytes of both carriers.

The bytes named `theirs` were written by tritonclient 2.73.0, Triton's own client.
"""

import contextlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edl.distill import tree
from edl.distill.frames import Part
from edl.distill.kserve import grpc, http
from edl.distill.kserve.tensors import (
    Input,
    Model,
    Tensor,
    answer_of,
    in_spans,
    inputs_of,
    listed_part,
    raw_part,
)
from edl.proto import kserve_pb2 as pb

RECORD = np.array([7, -1])
X = np.array([[1.5], [2]], np.float32)
LOGITS = Tensor("logits", "FP32", (-1, 10))


def model(*inputs, outputs=(LOGITS,)):
    return Model(tuple(Tensor(*each) for each in inputs), outputs)


def parts(features):
    return tree.parts_of(features, "it")


def test_a_lone_feature_is_the_lone_input_whatever_their_names():
    for features in (torch.ones(2, 3), {"pixels": torch.ones(2, 3)}, (torch.ones(2, 3),)):
        (found,) = inputs_of(parts(features), model(("INPUT__0", "FP32", (-1, 3))))
        assert ("INPUT__0", "FP32", (2, 3)) == (found.name, found.datatype, found.values.shape)


def test_several_features_go_by_the_last_step_of_their_paths():
    features = {"ids": torch.zeros(2, 5, dtype=torch.int32), "more": [{"a/b": torch.ones(2)}]}
    takes = model(("a/b", "FP32", (-1,)), ("ids", "INT32", (-1, -1)))

    found = inputs_of(parts(features), takes)

    assert [("ids", "INT32"), ("a/b", "FP32")] == [(each.name, each.datatype) for each in found]


def test_where_a_server_tells_of_no_inputs_features_say_what_they_are():
    found = inputs_of(parts({"x": torch.ones(2)}), model())
    assert [("x", "FP32")] == [(each.name, each.datatype) for each in found]
    with pytest.raises(ValueError, match="names of their own"):
        inputs_of(parts(torch.ones(2)), model())


@pytest.mark.parametrize(
    ("features", "takes", "both"),
    [
        ({"x": "f4", "y": "f4"}, [("x", "FP32", (-1,)), ("z", "FP32", (-1,))], ("'/y'", "'z'")),
        ({"x": "f4", "y": "f4"}, [("x", "FP32", (-1,))], ("'/y'", "takes 'x'")),
        ({"x": "f4"}, [("x", "FP32", (-1,)), ("z", "FP32", (-1,))], ("'/x'", "'x', 'z'")),
        ({"x": "f4"}, [("x", "FP64", (-1,))], ("FP32 [2]", "'x' (FP64 [-1])")),
        ({"x": "i4"}, [("x", "UINT32", (-1,))], ("INT32", "UINT32")),
        ({"x": "f4"}, [("x", "FP32", (-1, 4))], ("FP32 [2]", "FP32 [-1, 4]")),
        ({"x": "f4"}, [("x", "FP32", (3,))], ("FP32 [2]", "FP32 [3]")),
        ({"x": "c8"}, [("x", "FP32", (-1,))], ("'/x'", "complex64")),
        ({"x": "f4"}, [("x", "BYTES", (-1,))], ("'x' (BYTES [-1])", "only numbers")),
    ],
)
def test_what_does_not_fit_is_named_on_both_sides(features, takes, both):
    arrays = {name: np.zeros(2, dtype) for name, dtype in features.items()}
    with pytest.raises(ValueError, match=".") as error:
        inputs_of(parts(arrays), model(*takes))
    assert all(side in str(error.value) for side in both), error.value


def test_two_features_with_one_last_step_are_refused():
    with pytest.raises(ValueError, match="'/a/x', '/b/x'"):
        inputs_of(
            parts({"a": {"x": X}, "b": {"x": X}}),
            model(("x", "FP32", (-1, 1)), ("y", "FP32", (-1, 1))),
        )


def test_a_model_that_answers_texts_is_refused():
    with pytest.raises(ValueError, match="BYTES"):
        inputs_of(parts(X), model(("x", "FP32", (-1, 1)), outputs=(Tensor("t", "BYTES", (-1,)),)))


def test_one_output_is_a_tensor_and_several_are_a_dict():
    assert [""] == [each.name for each in answer_of([Part("logits", X)])]

    both = answer_of([Part("a:0", X), Part("b/c", 2 * X)])
    values = tree.values_of(both)
    assert ["a:0", "b/c"] == list(values)
    np.testing.assert_array_equal(2 * X, values["b/c"])

    for wrong in ([], [Part("a", X), Part("a", X)]):
        with pytest.raises(ValueError, match="output"):
            answer_of(wrong)


def test_rows_beyond_a_models_batch_are_asked_in_spans():
    asked = []

    def ask(some):
        asked.append(len(some[0].values))
        return [Part("y", 2 * some[0].values)]

    rows = np.arange(20)
    (found,) = in_spans([Part("x", rows)], 20, 8, ask)

    assert [8, 8, 4] == asked
    np.testing.assert_array_equal(2 * rows, found.values)


def test_spans_with_other_rows_are_not_put_together():
    with pytest.raises(ValueError, match="for 8 records"):
        in_spans([Part("x", np.arange(20))], 20, 8, lambda some: [Part("y", some[0].values[1:])])


# -- bytes


def test_a_request_by_message_is_byte_for_byte_theirs():
    theirs = (
        "0a016d1201332a120a067265636f72641205494e5436341a01022a0d0a01781204465033321a0202013a1007"
        "00000000000000ffffffffffffffff3a080000c03f00000040"
    )
    inputs = [Input("record", "INT64", RECORD), Input("x", "FP32", X)]
    request = pb.InferRequest(
        model_name="m",
        model_version="3",
        inputs=[
            pb.InferTensor(name=i.name, datatype=i.datatype, shape=i.values.shape) for i in inputs
        ],
        raw_input_contents=[i.raw().tobytes() for i in inputs],
    )
    assert theirs == request.SerializeToString().hex()
    asked = pb.ModelRequest(name="m", version="3")
    assert "0a016d120133" == asked.SerializeToString().hex()


def test_replies_by_message_are_read_as_theirs():
    meta = pb.ModelMetadataReply.FromString(
        bytes.fromhex(
            "0a016d1201311201331a017022160a01781204465033321a0bffffffffffffffffff01042a1b0a066c6f"
            "676974731204465031361a0bffffffffffffffffff010a"
        )
    )
    assert (Tensor("x", "FP32", (-1, 4)),) == grpc._tensors(meta.inputs)
    assert (Tensor("logits", "FP16", (-1, 10)),) == grpc._tensors(meta.outputs)
    config = "0a1b0a016d12106f6e6e7872756e74696d655f6f6e6e7820405a021005"
    assert 64 == pb.ModelConfigReply.FromString(bytes.fromhex(config)).config.max_batch_size
    about = "0a06747269746f6e1201321a1262696e6172795f74656e736f725f64617461"
    extensions = pb.ServerMetadataReply.FromString(bytes.fromhex(about)).extensions
    assert ["binary_tensor_data"] == list(extensions)
    assert pb.HealthReply.FromString(bytes.fromhex("0801")).is_so


def test_outputs_by_message_are_read_as_theirs():
    raw = (
        "0a016d1201331a013922070a0161120208012a1b0a066c6f676974731204465033321a02020122070a016212"
        "02100432080000c03f00000040"
    )
    (logits,) = grpc._outputs(pb.InferReply.FromString(bytes.fromhex(raw)))
    assert "logits" == logits.name
    np.testing.assert_array_equal(X, logits.values)

    listed = (
        "0a016d2a1b0a01611204494e54381a01022a0d120b01feffffffffffffffff012a110a01621204424f4f4c1a"
        "01012a030a01012a130a0163120655494e5431361a01012a032201092a180a01641204465036341a01012a0a"
        "3a08000000000000e03f2a140a01651204465033321a01012a0632040000003f2a1b0a01661205494e543634"
        "1a01012a0c1a0afbffffffffffffffff012a1c0a0167120655494e5436341a01012a0c2a0a80808080808080"
        "808001"
    )
    found = grpc._outputs(pb.InferReply.FromString(bytes.fromhex(listed)))
    assert [
        ("a", "int8", [1, -2]),
        ("b", "bool", [True]),
        ("c", "uint16", [9]),
        ("d", "float64", [0.5]),
        ("e", "float32", [0.5]),
        ("f", "int64", [-5]),
        ("g", "uint64", [2**63]),
    ] == [(each.name, str(each.values.dtype), each.values.tolist()) for each in found]


def test_a_request_over_http_says_what_theirs_says():
    theirs = (
        '{"inputs":[{"name":"record","shape":[2],"datatype":"INT64","parameters":{"binary_data_siz'
        'e":16}},{"name":"x","shape":[2,1],"datatype":"FP32","parameters":{"binary_data_size":8}}]'
        ',"parameters":{"binary_data_output":true}}'
    )
    their_bytes = "0700000000000000ffffffffffffffff0000c03f00000040"
    inputs = [Input("record", "INT64", RECORD), Input("x", "FP32", X)]

    head, bodies = http._request(inputs, True)

    assert json.loads(theirs) == json.loads(head)
    assert their_bytes == b"".join(each.tobytes() for each in bodies).hex()


def test_bytes_are_little_endian_and_row_by_row_whatever_an_array_is():
    for values in (X.astype(">f4"), np.asfortranarray(X), np.stack([X, X], 2)[:, :, 0]):
        assert "0000c03f00000040" == Input("x", "FP32", values).raw().tobytes().hex()
    assert b"" == Input("x", "FP32", np.zeros((0, 3), np.float32)).raw().tobytes()
    assert 4 == len(Input("x", "FP32", np.array(1, np.float32)).raw())


# -- what is no answer

HEAD = {"name": "y", "datatype": "FP32", "shape": [2]}


def answer(*outputs, raw=b"", nbytes=None):
    told = json.dumps({"outputs": outputs}).encode()
    header = len(told) if raw and nbytes is None else nbytes
    return SimpleNamespace(body=told + raw, json_nbytes="" if header is None else str(header))


@pytest.mark.parametrize(
    "wrong",
    [
        answer(HEAD | {"data": [1.0]}),
        answer(HEAD | {"data": [1.0, "2"]}),
        answer(HEAD | {"data": [1.0, None]}),
        answer(HEAD | {"data": [1.0, True]}),
        answer(HEAD),
        answer(HEAD | {"shape": [-1], "data": []}),
        answer(HEAD | {"shape": [2.0], "data": [1, 2]}),
        answer(HEAD | {"shape": [1 << 40], "data": []}),
        answer(HEAD | {"shape": [0, 1 << 62], "data": []}),
        answer(HEAD | {"shape": [1] * 9, "data": [1]}),
        answer(HEAD | {"datatype": "BYTES", "data": ["a", "b"]}),
        answer(HEAD | {"datatype": "INT8", "data": [1, 128]}),
        answer(HEAD | {"datatype": "INT32", "data": [1, 1.5]}),
        answer(HEAD | {"datatype": "BF16", "data": [1, 2]}),
        answer(HEAD | {"data": [[[[[[[[[[1, 2]]]]]]]]]]}),
        answer(HEAD | {"parameters": {"binary_data_size": 8}}, raw=b"1234"),
        answer(HEAD | {"parameters": {"binary_data_size": 4}}, raw=b"1234"),
        answer(HEAD | {"parameters": {"binary_data_size": -8}}, raw=b"1234"),
        answer(HEAD | {"parameters": {"binary_data_size": 8}}, raw=b"123456789"),
        answer(HEAD | {"data": [1, 2]}, raw=b"1"),
        answer(HEAD | {"data": [1, 2]}, nbytes=9999),
        answer(HEAD | {"data": [1, 2]}, nbytes=-1),
        answer({"name": "y"}),
        SimpleNamespace(body=b"[" * 100_000, json_nbytes=""),
        SimpleNamespace(body=b"<html>", json_nbytes=""),
        SimpleNamespace(body=b"\xff\xfe\x00", json_nbytes=""),
        SimpleNamespace(body=b"[]", json_nbytes=""),
    ],
)
def test_what_is_no_answer_is_a_value_error(wrong):
    with pytest.raises(ValueError, match="."):
        http._outputs(wrong)


@given(st.binary(max_size=20), st.sampled_from(["", "0", "7", "true"]), st.randoms())
def test_bytes_of_any_kind_are_an_answer_or_a_value_error(noise, nbytes, rng):
    whole = answer(HEAD | {"parameters": {"binary_data_size": 8}}, raw=b"12345678")
    nbytes = whole.json_nbytes if nbytes == "true" else nbytes
    body = bytearray(whole.body + noise)
    for _ in range(rng.randrange(4)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    with contextlib.suppress(ValueError):
        found = http._outputs(SimpleNamespace(body=bytes(body), json_nbytes=nbytes))
        assert all(isinstance(part.values, np.ndarray) for part in found)


def test_bytes_that_do_not_fit_the_shape_are_told_with_both():
    with pytest.raises(ValueError, match=r"'y' of FP32 \[2\] has 4 bytes, not 8"):
        raw_part("y", "FP32", [2], b"1234")


def test_bools_of_any_byte_are_bools():
    part = raw_part("y", "BOOL", [3], b"\x00\x01\xff")
    np.testing.assert_array_equal([False, True, True], part.values)
    assert part.values.dtype == bool


def test_listed_values_may_be_nested_and_ints_exact():
    np.testing.assert_array_equal(X, listed_part("y", "FP32", [2, 1], [[1.5], [2]]).values)
    large = [1, 2**64 - 1]
    assert large == listed_part("y", "UINT64", [2], large).values.tolist()
    assert np.isnan(listed_part("y", "FP32", [1], [float("nan")]).values).all()
