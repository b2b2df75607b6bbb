"""The frames between student and teacher: what goes in comes out, and nothing else is taken."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edl.distill import frames, tree
from edl.distill.frames import Head, Malformed, Part

KINDS = st.sampled_from(["f4", "f2", "f8", "i8", "i1", "u2", "?"])
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
VALUES = KINDS.flatmap(lambda kind: arrays.arrays(np.dtype(kind), SHAPES))
NAMES = st.text("abc/:;\\é", max_size=8)
PARTS = st.dictionaries(NAMES, VALUES, max_size=6).map(
    lambda found: [Part(name, values) for name, values in found.items()]
)


def body_of(parts):
    descriptors, nbytes = frames.describe(parts)
    body = np.zeros(nbytes, np.uint8)
    frames.fill(parts, body)
    return descriptors, body


@given(PARTS)
def test_arrays_come_out_as_they_went_in(parts):
    descriptors, body = body_of(parts)
    head = Head(frames.TEACH, rows=1, told_nbytes=len(descriptors), body_nbytes=len(body))
    head = frames.parse_head(frames.pack_head(head), frames.REQUESTS)

    found = frames.values_in(frames.parse_arrays(head, descriptors), body)

    assert [part.name for part in parts] == [part.name for part in found]
    for before, after in zip(parts, found, strict=True):
        assert before.values.dtype == after.values.dtype
        np.testing.assert_array_equal(before.values, after.values)
    assert b"".join(bytes(memoryview(b).cast("B")) for b in frames.buffers(parts)) == bytes(body)


@given(PARTS, st.data())
def test_a_changed_descriptor_is_refused_or_read_within_the_body(parts, data):
    descriptors, body = body_of(parts)
    changed = bytearray(descriptors)
    if changed:
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    head = Head(frames.TEACH, told_nbytes=len(changed), body_nbytes=len(body))
    try:
        told = frames.parse_arrays(head, changed)
    except Malformed:
        return
    found = frames.values_in(told, body)
    assert sum(part.values.nbytes for part in found) <= len(body)  # no view goes beyond it


@pytest.mark.parametrize(
    "head",
    [
        Head(frames.TAUGHT),
        Head(frames.TEACH, flags=8),
        Head(frames.TEACH, told_nbytes=frames.MAX_TOLD_NBYTES + 1),
        Head(frames.TEACH, body_nbytes=frames.MAX_BODY_NBYTES + 1),
        Head(frames.TEACH, rows=frames.MAX_ROWS + 1),
    ],
)
def test_heads_beyond_the_limits_are_refused(head):
    with pytest.raises(Malformed):
        frames.parse_head(frames.pack_head(head), frames.REQUESTS)


def test_a_head_of_the_other_plane_is_refused():
    with pytest.raises(Malformed, match="no frame of a teacher"):
        frames.parse_head(b"EDLP" + bytes(frames.HEAD_NBYTES), frames.REQUESTS)


def test_what_is_no_number_cannot_travel():
    with pytest.raises(ValueError, match="'x' is <U1"):
        frames.describe([Part("x", np.array(["a"]))])


TENSORS = st.recursive(
    st.integers(0, 5).map(lambda seed: torch.arange(seed, dtype=torch.float32)),
    lambda inner: st.one_of(
        st.dictionaries(st.text("ab/:\\;", max_size=3), inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=8,
)


def alike(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return [*a] == [*b] and all(alike(a[key], b[key]) for key in a)
    return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))


@given(TENSORS)
def test_features_are_built_as_they_were(values):
    assert alike(values, tree.values_of(tree.parts_of(values, "it")))


def test_bfloat16_keeps_its_bits():
    values = torch.tensor([1.0, float("nan"), 3.0], dtype=torch.bfloat16)

    (part,) = tree.parts_of(values, "it")
    back = tree.values_of([part])

    assert back.dtype == torch.bfloat16
    assert torch.equal(values.view(torch.int16), back.view(torch.int16))
    assert tree.has_nan(part)
    assert not tree.has_nan(tree.parts_of(torch.full((2,), -torch.inf), "it")[0])


def test_text_among_features_is_named():
    with pytest.raises(TypeError, match="feed's features has a str at '/name'"):
        tree.parts_of({"name": "x"}, "feed's features")


@pytest.mark.parametrize("names", [["/a", "/a/b"], ["/a/b", "/a"], ["a"], ["/a", "/a"]])
def test_paths_that_are_none_are_refused(names):
    with pytest.raises(ValueError, match="array"):
        tree.values_of([Part(name, np.zeros(1)) for name in names])
