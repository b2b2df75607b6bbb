"""Layers before the model, against ElasticDL's and Keras' documented values and scikit-learn."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import KBinsDiscretizer, MinMaxScaler, OrdinalEncoder, StandardScaler

from edl.common.errors import UsageError
from edl.nn import hash64
from edl.nn import preprocess as pre

pytestmark = pytest.mark.fast

LETTERS = np.array(["A", "B", "C", "D", "E"])
ONE_OF_EACH = [
    pre.Normalizer(1.0, 2.0),
    pre.Discretization([0.0, 1.0]),
    pre.LogRound(16, base=2),
    pre.RoundIdentity(5, default_value=1),
    pre.ToNumber("float32", -1),
    pre.Hashing(7, "city"),
    pre.IndexLookup(["1", "2", "é"], num_oov_tokens=3),
    pre.Crossing(11, "a x b"),
    pre.ToSparse(),
    pre.ToRagged("|"),
    pre.ConcatenateWithOffset([0, 10]),
]


def analysis(**columns):
    known = {"missing": 0, "distinct": 3, "vocabulary": [], "count": 3}
    return {"format": "edl-analysis-1", "columns": {n: known | c for n, c in columns.items()}}


# ElasticDL's documented values, layer by layer.


def test_normalizer_as_documented():
    assert pre.Normalizer(1.0, 2.0)(np.array([[3.0], [5.0], [7.0]])).tolist() == [[1], [2], [3]]


def test_log_round_as_documented():
    column = np.array([[1.2], [1.6], [0.2], [3.1], [100]])

    assert pre.LogRound(16, base=2)(column).tolist() == [[0], [1], [0], [2], [7]]


def test_round_identity_as_documented():
    column = np.array([[1.2], [1.6], [0.2], [3.1], [4.9]])

    assert pre.RoundIdentity(6)(column).tolist() == [[1], [2], [0], [3], [5]]


def test_index_lookup_as_documented():
    layer = pre.IndexLookup(["A", "B", "C"])

    assert layer(LETTERS[:, None]).tolist() == [[0], [1], [2], [3], [3]]


def test_discretization_as_documented():
    """Keras: "Bins include the left boundary and exclude the right boundary"."""
    column = np.array([[-1.5, 1.0, 3.4, 0.5], [0.0, 3.0, 1.3, 0.0]])

    assert pre.Discretization([0.0, 1.0, 2.0])(column).tolist() == [[0, 2, 3, 1], [1, 3, 2, 1]]


def test_to_sparse_as_documented():
    sparse = pre.ToSparse()(np.array([["A", ""], ["B", "C"]]))

    assert sparse.indices.tolist() == [[0, 0], [1, 0], [1, 1]]
    assert (sparse.values.tolist(), sparse.shape) == (["A", "B", "C"], (2, 2))


def test_to_ragged_as_documented():
    whole = pre.ToRagged()(torch.tensor([[1], [-1], [4]]))
    texts = pre.ToRagged()(np.array(["1,2,3", "4,5", ""]))

    assert whole.tolist() == [[1], [], [4]]
    assert texts.tolist() == [["1", "2", "3"], ["4", "5"], []]


def test_concatenate_with_offset_as_documented():
    inputs = [torch.tensor([[1], [1], [1]]), torch.tensor([[2], [2], [2]])]

    made = pre.ConcatenateWithOffset([0, 10], axis=1)(inputs)

    assert made.tolist() == [[1, 12], [1, 12], [1, 12]]


# scikit-learn's, from an analysis as `edl data analyze` writes it.

numbers = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30).filter(
    lambda each: np.std(each) > 1e-3
)


@given(numbers)
def test_normalizer_of_an_analysis_is_sklearns_scaler(values):
    column = np.array(values)
    known = {"kind": "number", "mean": column.mean(), "deviation": column.std()}
    known |= {"min": column.min(), "max": column.max()}
    found = analysis(x=known)

    by_deviation = pre.Normalizer.from_analysis(found, "x").numpy(column)
    by_range = pre.Normalizer.from_analysis(found, "x", by="range").numpy(column)

    rows = column[:, None]
    np.testing.assert_allclose(by_deviation, StandardScaler().fit_transform(rows)[:, 0], 1e-5, 1e-6)
    np.testing.assert_allclose(by_range, MinMaxScaler().fit_transform(rows)[:, 0], 1e-5, 1e-6)


def test_discretization_of_quantiles_is_sklearns():
    column = np.random.default_rng(7).normal(size=1000)
    shares = np.arange(101) / 100
    quantiles = {"probabilities": shares.tolist(), "values": np.quantile(column, shares).tolist()}
    found = analysis(x={"kind": "number", "mean": 0.0, "quantiles": quantiles})

    layer = pre.Discretization.from_analysis(found, "x", num_bins=10)
    theirs = KBinsDiscretizer(10, encode="ordinal", quantile_method="linear")

    assert layer.num_bins == 10
    assert layer.numpy(column).tolist() == theirs.fit_transform(column[:, None])[:, 0].tolist()


@given(st.lists(st.text("abcé", min_size=1, max_size=2), min_size=1, max_size=30))
def test_index_lookup_is_sklearns_encoder_by_the_same_vocabulary(words):
    column = np.array(words)
    vocabulary = sorted(set(words))[:3]
    theirs = OrdinalEncoder(
        categories=[vocabulary], handle_unknown="use_encoded_value", unknown_value=len(vocabulary)
    ).fit(np.array(vocabulary)[:, None])

    mine = pre.IndexLookup(vocabulary).numpy(column)

    assert mine.tolist() == theirs.transform(column[:, None])[:, 0].tolist()


# One object for training and serving.


@pytest.mark.parametrize("layer", ONE_OF_EACH, ids=lambda each: each.name)
def test_layer_comes_back_from_its_json(layer):
    saved = layer.to_dict()
    sent = json.loads(json.dumps(saved, allow_nan=False))
    again = pre.from_dict(sent)

    assert sent == saved
    assert (type(again), again) == (type(layer), layer)


def test_each_layer_has_a_test_of_its_json():
    named = {name for name in pre.__all__ if isinstance(getattr(pre, name), type)}

    assert {layer.name for layer in ONE_OF_EACH} == named - {"Layer", "Ragged", "Sparse"}


@pytest.mark.parametrize("layer", ONE_OF_EACH[:6], ids=lambda each: each.name)
def test_array_tensor_and_list_give_the_same_tensor_in_their_shape(layer):
    column = np.array([[3.0, 0.5], [2.0, 4.0]])
    made = [layer(each) for each in (column, torch.tensor(column), column.tolist())]

    assert isinstance(made[0], torch.Tensor)
    assert made[0].shape == (2, 2)
    assert made[0].tolist() == made[1].tolist() == made[2].tolist() == layer.numpy(column).tolist()


def test_layers_are_applied_to_the_values_of_ragged_and_sparse():
    genres = np.array(["a|b", "", "c|a|x"])
    layer = pre.IndexLookup(["a", "b", "c"])

    ragged = layer(pre.ToRagged("|")(genres))
    sparse = layer(pre.ToSparse()(np.array([["a", ""], ["", "b"]])))

    assert ragged.tolist() == [[0, 1], [], [2, 0, 3]]
    assert ragged.padded().tolist() == [[0, 1, -1], [-1, -1, -1], [2, 0, 3]]
    assert ragged.padded(length=2).tolist() == [[0, 1], [-1, -1], [2, 0]]
    assert sparse.tensor().coalesce().values().tolist() == [0, 1]


def test_ragged_ids_are_what_an_embedding_bag_takes():
    ragged = pre.ToRagged()(np.array([[1, -1], [-1, -1], [0, 2]]))
    bag = torch.nn.EmbeddingBag(3, 1, mode="sum", _weight=torch.tensor([[1.0], [10.0], [100.0]]))

    assert bag(*ragged.bag()).ravel().tolist() == [10, 0, 101]


def test_lists_of_parquet_are_ragged_and_stand_beside_each_other():
    column = np.empty(3, object)
    column[:] = [np.array([1, 2]), np.array([], np.int64), np.array([3])]
    other = pre.ToRagged()(np.array([[7], [8], [-1]]))

    made = pre.ConcatenateWithOffset([0, 10])([pre.ToRagged()(column), other])

    assert made.tolist() == [[1, 2, 17], [18], [3]]


@given(st.lists(st.text("a|", max_size=4), max_size=12))
def test_texts_are_split_as_python_splits_them(texts):
    ragged = pre.ToRagged("|")(np.array(texts, object))

    assert ragged.tolist() == [[part for part in text.split("|") if part] for text in texts]


def test_columns_stand_beside_each_other():
    made = pre.ConcatenateWithOffset([0, 5])([np.array([1, 2]), np.array([0, 1])])

    assert made.tolist() == [[1, 5], [2, 6]]


# Ids.


def test_hashing_is_hash64_in_bins():
    ids = pre.Hashing(num_bins=3, field="letter")(LETTERS)

    assert ids.tolist() == (hash64("letter", LETTERS) % 3).tolist()
    assert pre.Hashing(field="letter")(LETTERS).tolist() == hash64("letter", LETTERS).tolist()


def test_crossing_tells_pairs_and_their_order_apart():
    a, b = (each.ravel() for each in np.meshgrid(np.arange(40), np.arange(40)))
    crossing = pre.Crossing()

    ids = crossing([a, b])

    assert len(set(ids.tolist())) == 1600
    assert (crossing([b, a]) == ids).tolist() == (a == b).tolist()
    assert crossing([a.astype(float), b]).tolist() == ids.tolist()
    assert pre.Crossing(5)([a, b]).max() == 4


def test_unknown_values_share_the_ids_behind_the_vocabulary():
    layer = pre.IndexLookup(["A"], num_oov_tokens=4)
    words = np.array([f"w{i}" for i in range(200)])

    assert set(layer(words).tolist()) == {1, 2, 3, 4}
    assert layer(words).tolist() == layer(words.astype(object)).tolist()
    assert layer.num_ids == 5


def test_vocabulary_comes_from_a_file_and_is_kept_in_the_json(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("München\n b \nc\n", encoding="utf-8")
    layer = pre.IndexLookup(file)
    file.unlink()

    again = pre.from_dict(layer.to_dict())

    assert again(["c", "München", "München".encode(), "?"]).tolist() == [2, 0, 0, 3]


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path):
    """S10."""
    words, found = tmp_path / "words.txt", tmp_path / "analysis.json"
    words.write_bytes("\ufeffMünchen\r\nParis\r\n".encode())
    found.write_text(json.dumps(analysis(city={"kind": "text"})), encoding="utf-8-sig")

    assert pre.IndexLookup(words).vocabulary == ("München", "Paris")
    assert pre.read_analysis(found)["columns"]["city"]["kind"] == "text"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf_16_is_told(tmp_path, encoding):
    words = tmp_path / "words.txt"
    words.write_text("München\n", encoding=encoding)

    for read in (pre.IndexLookup, pre.read_analysis):
        with pytest.raises(UsageError, match="words.txt is of UTF-16 or UTF-32: save it as UTF-8"):
            read(words)


def test_learnt_vocabulary_has_the_most_frequent_first_and_nothing_missing():
    column = np.array(["b", "a", "", "c", "c", "a", ""])
    numbers = np.array([3.0, np.nan, 3.0, 5.0])

    assert pre.IndexLookup.learnt(column).vocabulary == ("a", "c", "b")
    assert pre.IndexLookup.learnt(column, size=1).vocabulary == ("a",)
    assert pre.IndexLookup.learnt(numbers).vocabulary == (3.0, 5.0)


# Numbers out of what is no number.


def test_missing_values_become_the_default():
    layer = pre.ToNumber("int64", -1)

    assert layer(np.array(["12", "", "9007199254740993"])).tolist() == [12, -1, 2**53 + 1]
    assert layer(np.array([1.5, np.nan])).tolist() == [1, -1]
    assert pre.ToNumber(torch.float32, 0)(np.array(["1e3", ""])).dtype == torch.float32
    assert pre.ToNumber(np.float64, 0)(np.array([b"1.5", b""])).tolist() == [1.5, 0.0]
    assert pre.ToNumber("int8", 0)(np.array(["2.9", ""])).tolist() == [2, 0]


def test_nan_and_what_is_out_of_range_become_the_default_bin():
    column = np.array([np.nan, np.inf, -np.inf, 0.0, -3.0, 5.0])

    assert pre.RoundIdentity(5, default_value=4)(column).tolist() == [4, 4, 4, 0, 4, 4]
    assert pre.LogRound(2, default_value=1)(column).tolist() == [1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("layer", "values", "said"),
    [
        (pre.ToNumber("float32", 0), ["1", "x1"], "'x1', which is no number"),
        (pre.ToNumber("int8", 0), ["1", "300"], "300, beyond int8"),
        (pre.ToNumber("int64", 0), [np.inf], "inf, beyond int64"),
        (pre.ToNumber("uint8", 0), [3, -1], "-1, beyond uint8"),
        (pre.Normalizer(0, 1), ["1"], "'1': put ToNumber before it"),
        (pre.Discretization([0]), [np.nan], "NaN, which is in no bin"),
        (pre.IndexLookup(["1"]), [1], "texts and got a value of type int64"),
        (pre.IndexLookup([1]), ["1"], "numbers and got a value of type str"),
        (pre.IndexLookup(["1"]), ["1", None], "type NoneType"),
        (pre.Hashing(3), np.array(["a", None]), "meets a None"),
        (pre.IndexLookup([1]), np.array(["2020"], "M8[D]"), "type datetime64"),
        (pre.Crossing(3), [[1, 2], [3]], r"one shape, and got \[\[2\], \[1\]\]"),
        (pre.ToRagged(), np.array(["a", None]), "type NoneType"),
        (pre.ConcatenateWithOffset([1]), [[1], [2]], "1 offsets and got 2 inputs"),
    ],
)
def test_bad_values_are_one_sentence(layer, values, said):
    with pytest.raises(ValueError, match=said):
        layer(values)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pre.Normalizer(0, 0), "divisor that is not 0"),
        (lambda: pre.Discretization([1, 1]), "bins that rise"),
        (lambda: pre.Hashing(0), "num_bins of 1 or more"),
        (lambda: pre.LogRound(4, base=1), "base above 0"),
        (lambda: pre.RoundIdentity(-1), "num_buckets of 1"),
        (lambda: pre.ToNumber("str", 0), "and not 'str'"),
        (lambda: pre.ToNumber("int8", 0.5), "must be whole"),
        (lambda: pre.IndexLookup(["a", "b", "a"]), "'a' twice"),
        (lambda: pre.IndexLookup([None, 1]), "None, which is no text or number"),
        (lambda: pre.IndexLookup("no-such-file.txt"), "no-such-file.txt cannot be read"),
        (lambda: pre.ToRagged("::"), "one character"),
        (lambda: pre.from_dict({"layer": "Nope"}), "no layer 'Nope'"),
        (lambda: pre.from_dict([1]), "no layer"),
        (lambda: pre.from_dict({"layer": "Hashing", "bins": 3}), "no field 'bins'"),
        (lambda: pre.from_dict({"layer": "Normalizer", "divisor": 3}), "cannot be read"),
        (lambda: pre.Hashing.from_dict({"layer": "ToSparse"}), "was asked for"),
        (lambda: pre.read_analysis("no-such.json"), "There is no no-such.json"),
    ],
)
def test_bad_layers_are_one_sentence(make, said):
    with pytest.raises(UsageError, match=said):
        make()


def test_analysis_of_another_column_is_one_sentence(tmp_path):
    column = {"vocabulary": [["a", 2]], "kind": "text", "mean": None}
    found = analysis(city=column, age={"kind": "number", "mean": 1, "deviation": 0, "min": 1})
    found["columns"]["none"] = {"count": 0}
    (tmp_path / "other.json").write_text("{}")

    with pytest.raises(UsageError, match="no column 'size'; it has 'city', 'age'"):
        pre.Hashing.from_analysis(found, "size")
    with pytest.raises(UsageError, match="'city' is of text"):
        pre.Normalizer.from_analysis(found, "city")
    with pytest.raises(UsageError, match="All values of column 'age' are 1"):
        pre.Normalizer.from_analysis(found, "age")
    with pytest.raises(UsageError, match="has no value"):
        pre.IndexLookup.from_analysis(found, "none")
    with pytest.raises(UsageError, match="kept 1 of the 3 values"):
        pre.IndexLookup.from_analysis(found, "city")
    with pytest.raises(UsageError, match="is no analysis"):
        pre.Hashing.from_analysis(tmp_path / "other.json", "city")
    assert pre.IndexLookup.from_analysis(found, "city", size=1).vocabulary == ("a",)
