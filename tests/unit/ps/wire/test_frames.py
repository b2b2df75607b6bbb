"""The tensor plane's bytes: golden frames, round trips, and everything that is refused."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.cli import main as cli
from edl.ps.wire import frames
from edl.ps.wire.frames import Head, Malformed

PULL_GOLDEN = (
    "45444c50" "02" "01" "0300"  # magic, protocol, pull, dense and known
    "07000000" "00000000" "20000000" "00000000"  # slot map 7; 32 bytes of descriptors
    "1000000000000000" "0000000000000000" "0000000000000000" "0000000000000000"  # body of 16
    "0000000000000000" "2a00000000000000" "00000000" "00000000"  # knows version 42
    "02" "00" "0400" "00000000" "0200000000000000"  # 2 rows of
    "75736572000000000000000000000000"  # "user"
)  # fmt: skip
PUSH_GOLDEN = (
    "45444c50" "02" "02" "0400"  # push, then answer with dense chunks
    "01000000" "e8030000" "40000000" "03000000"  # waits 1,000 ms; attempt 3
    "3000000000000000" "0500000000000000" "4000000000000000" "8000000000000000"  # task 5: [64, 128)
    "0900000000000000" "0000000000000000" "02000000" "01000000"  # as of version 9; regions 2 and 1
    "02" "01" "0400" "02000000" "0100000000000000"  # 1 float32 row of dim 2 of
    "75736572000000000000000000000000"  # "user"
    "03" "05" "0100" "06000000" "0500000000000000"  # 5 codes of chunk 6 of
    "77000000000000000000000000000000"  # "w"
)  # fmt: skip
PULL = ((frames.ROWS, frames.NONE, "user", 0, 2),)
PUSH = (
    (frames.ROWS, frames.FLOAT32, "user", 2, 1),
    (frames.CHUNK, frames.SCALED_FLOAT16, "w", 6, 5),
)


def framed(head: Head, told: tuple[frames.Told, ...], body: int | None = None) -> bytes:
    arrays, descriptors, nbytes = frames.describe(told)
    ids = sum(8 * a.count for a in arrays if a.kind == frames.ROWS and head.op != frames.PULLED)
    lengths = {"descriptors_nbytes": len(descriptors), "body_nbytes": nbytes + frames.padded(ids)}
    return frames.pack_head(head._replace(**lengths)) + descriptors


def parsed(data: bytes, ops=frames.REQUESTS | frames.REPLIES):
    head = frames.parse_head(data, ops)
    return head, frames.parse_arrays(head, data[frames.HEAD_NBYTES :])


def test_pull_is_these_bytes():
    head = Head(frames.PULL, frames.DENSE | frames.KNOWN, code=7, known=42)

    assert framed(head, PULL).hex() == PULL_GOLDEN


def test_push_is_these_bytes():
    head = Head(
        frames.PUSH,
        frames.THEN,
        code=1,
        timeout_ms=1000,
        attempt=3,
        task=5,
        start=64,
        end=128,
        version=9,
        body_region=2,
        reply_region=1,
    )

    assert framed(head, PUSH).hex() == PUSH_GOLDEN


def test_push_whose_values_come_later_is_these_bytes():
    head, arrays = parsed(bytes.fromhex(PUSH_GOLDEN))

    later = head._replace(flags=frames.LATER | frames.THEN)

    assert framed(later, PUSH).hex() == PUSH_GOLDEN[:12] + "0c00" + PUSH_GOLDEN[16:]
    assert parsed(framed(later, PUSH)) == (later, arrays)


def test_pull_of_the_documentation_is_these_bytes():
    page = (Path(cli.__file__).parents[1] / "docs/tensor-plane.md").read_text()
    example = page.partition("A pull, byte by byte")[2].split("```")[1]
    told = "".join(line[:35].replace(" ", "") for line in example.splitlines())

    assert bytes.fromhex(told) == bytes.fromhex(PULL_GOLDEN) + np.array([5, 9]).tobytes()


def test_error_is_these_bytes():
    text = "6f68206e6f" + 11 * "00"
    expected = "45444c500244000003000000000000001000000000000000" + 56 * "00" + text

    assert frames.pack_error(3, "oh no").hex() == expected
    assert frames.error_text(bytes.fromhex(expected)[frames.HEAD_NBYTES :]) == "oh no"


def test_golden_bytes_are_understood():
    head, arrays = parsed(bytes.fromhex(PUSH_GOLDEN))

    assert (head.task, head.attempt, head.start, head.end, head.version) == (5, 3, 64, 128, 9)
    assert [array[:5] for array in arrays] == list(PUSH)
    assert [array.nbytes for array in arrays] == [16, 16]


names = st.text(max_size=20).filter(lambda text: len(text.encode()) < 60)
rows = st.tuples(
    st.just(frames.ROWS), st.sampled_from(sorted(frames.GRADIENTS.values())), names,
    st.integers(1, frames.MAX_DIM), st.integers(1, 10_000),
)  # fmt: skip
chunks = st.tuples(
    st.just(frames.CHUNK), st.sampled_from(sorted(frames.GRADIENTS.values())), names,
    st.integers(0, 2**32 - 1), st.integers(0, 1 << 20),
)  # fmt: skip
pushes = st.lists(st.one_of(rows, chunks), unique_by=lambda t: (t[0], t[2]), max_size=8)
heads = st.builds(
    Head,
    st.just(frames.PUSH),
    st.sampled_from([0, frames.THEN, frames.THEN | frames.KNOWN]),
    code=st.integers(0, 2**32 - 1),
    timeout_ms=st.integers(0, 2**32 - 1),
    descriptors_nbytes=st.just(0),
    body_nbytes=st.just(0),
    attempt=st.integers(-(2**31), 2**31 - 1),
    task=st.integers(-(2**63), 2**63 - 1),
    start=st.just(1),
    end=st.integers(-(2**63), 2**63 - 1),
    version=st.just(2),
    known=st.integers(-(2**63), 2**63 - 1),
    body_region=st.integers(0, frames.MAX_REGIONS),
    reply_region=st.just(0),
)


@given(heads, pushes)
def test_what_is_packed_is_parsed(head, told):
    arrays, descriptors, _ = frames.describe(tuple(told))
    data = framed(head, tuple(told))
    if frames.HEAD.unpack_from(data)[8] > frames.MAX_BODY_NBYTES:
        with pytest.raises(Malformed):
            parsed(data)
        return

    found, found_arrays = parsed(data)

    assert found_arrays == arrays
    lengths = {"descriptors_nbytes": len(descriptors), "body_nbytes": found.body_nbytes}
    assert found == head._replace(**lengths)


@given(st.binary(max_size=300))
def test_noise_is_malformed(data):
    with pytest.raises(Malformed):
        parsed(data.ljust(frames.HEAD_NBYTES, b"\0"))


@given(st.data())
def test_a_changed_frame_is_malformed_or_keeps_its_promises(data):
    frame = bytearray.fromhex(data.draw(st.sampled_from([PULL_GOLDEN, PUSH_GOLDEN])))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(frame) - 1))
        frame[place] = data.draw(st.integers(0, 255))
    try:
        head = frames.parse_head(frame, frames.REQUESTS)
        if head.descriptors_nbytes > len(frame) - frames.HEAD_NBYTES:
            return  # the receiver would wait for more
        arrays = frames.parse_arrays(
            head, frame[frames.HEAD_NBYTES : frames.HEAD_NBYTES + head.descriptors_nbytes]
        )
    except Malformed:
        return

    ids = sum(8 * array.count for array in arrays if array.kind == frames.ROWS)
    values = sum(array.nbytes for array in arrays)
    assert frames.padded(ids) + values == head.body_nbytes
    assert head.body_nbytes <= frames.MAX_BODY_NBYTES


@pytest.mark.parametrize(
    "change",
    [
        {"op": frames.PULLED},  # a server expects requests
        {"op": 77},
        {"flags": frames.LATER},  # a pull has no values that could come later
        {"op": frames.PUSH, "flags": frames.LATER},  # nor has a push that comes on the socket
        {"flags": 16},
        {"descriptors_nbytes": frames.MAX_DESCRIPTORS_NBYTES + 16},
        {"descriptors_nbytes": 24},
        {"body_nbytes": frames.MAX_BODY_NBYTES + 16},
        {"body_nbytes": 8},
        {"body_region": frames.MAX_REGIONS + 1},
        {"reply_region": 2**32 - 1},
    ],
    ids=str,
)
def test_head_beyond_the_limits_is_malformed(change):
    data = frames.pack_head(Head(frames.PULL)._replace(**change))

    with pytest.raises(Malformed):
        frames.parse_head(data, frames.REQUESTS)


@pytest.mark.parametrize(
    "data", [b"HTTP" + bytes(76), struct.pack("<IB", frames.MAGIC, 1) + bytes(75)]
)
def test_another_protocol_is_malformed(data):
    with pytest.raises(Malformed, match="no frame of protocol 2"):
        frames.parse_head(data, frames.REQUESTS)


@pytest.mark.parametrize(
    ("op", "told"),
    [
        (frames.PULL, [(frames.CHUNK, frames.NONE, "w", 0, 1)]),  # dense is a flag
        (frames.PULL, [(frames.ROWS, frames.FLOAT32, "t", 4, 1)]),  # a pull has no values
        (frames.PULL, 2 * [(frames.ROWS, frames.NONE, "t", 0, 1)]),
        (
            frames.PULL,
            [(frames.CUT, frames.NONE, "c", 0, 0), (frames.ROWS, frames.NONE, "t", 0, 1)],
        ),
        (frames.PUSH, [(frames.ROWS, frames.FLOAT32, "t", 0, 1)]),  # rows without a dim
        (frames.PUSH, [(frames.ROWS, frames.FLOAT32, "t", frames.MAX_DIM + 1, 1)]),
        (frames.PUSH, [(frames.ROWS, frames.FLOAT32, "t", 4, 0)]),
        (frames.PUSH, [(frames.ROWS, frames.BFLOAT16, "t", 4, 1)]),  # only weights are that
        (frames.PUSH, [(frames.ROWS, frames.NONE, "t", 4, 1)]),
        (frames.PUSH, 2 * [(frames.CHUNK, frames.FLOAT32, "w", 1, 8)]),
        (frames.PULLED, [(frames.ROWS, frames.SCALED_INT8, "", 4, 1)]),
        (frames.PUSHED, [(frames.ROWS, frames.FLOAT32, "t", 4, 1)]),
        (frames.DONE, [(frames.CHUNK, frames.FLOAT32, "w", 1, 8)]),
    ],
)  # fmt: skip
def test_arrays_that_the_operation_has_not_are_malformed(op, told):
    with pytest.raises(Malformed):
        parsed(framed(Head(op), tuple(told)))


def test_body_of_another_size_than_its_arrays_is_malformed():
    data = bytearray.fromhex(PULL_GOLDEN)
    data[24] += 16

    with pytest.raises(Malformed, match="its arrays 16"):
        parsed(bytes(data))


def test_name_beyond_the_descriptors_is_malformed():
    data = bytearray.fromhex(PULL_GOLDEN)
    data[82] = 17

    with pytest.raises(Malformed, match="beyond"):
        parsed(bytes(data))


def test_count_that_would_overflow_is_malformed():
    data = framed(Head(frames.PUSH), PUSH)
    huge = data[:88] + struct.pack("<Q", 2**64 - 1) + data[96:]

    with pytest.raises(Malformed):
        parsed(huge)


@pytest.mark.parametrize("wire", [frames.FLOAT32, frames.FLOAT16, frames.BFLOAT16])
def test_values_are_read_where_they_lie(wire):
    values = np.array([[1.5, -2.0], [0.25, 3.0]], np.float32)
    stored = {
        frames.FLOAT32: values,
        frames.FLOAT16: values.astype(np.float16),
        frames.BFLOAT16: (values.view(np.uint32) >> 16).astype(np.uint16),
    }[wire]
    body = np.zeros(64, np.uint8)
    body[16 : 16 + stored.nbytes] = stored.reshape(-1).view(np.uint8)
    (array,), _, _ = frames.describe(((frames.ROWS, wire, "t", 2, 2),))

    found = frames.values_of(array, body, 16)

    assert np.shares_memory(found, body)
    np.testing.assert_array_equal(frames.widened(wire, found), values)


def test_scales_of_rows_or_of_4096_elements_stand_before_the_codes():
    rows, chunk = frames.describe(
        (
            (frames.ROWS, frames.SCALED_FLOAT16, "t", 2, 2),
            (frames.CHUNK, frames.SCALED_INT8, "w", 0, 5000),
        )
    )[0]
    body = np.concatenate(
        [
            np.array([2.0, 10.0], np.float32).view(np.uint8),
            np.array([1, 2, 3, 4], np.float16).view(np.uint8),
            np.array([1.0, 0.5], np.float32).view(np.uint8),
            np.full(5000, 255, np.uint8),
        ]
    )

    codes, scales = frames.codes_of(rows, body, 0)
    assert (codes.tolist(), scales.tolist()) == ([[1, 2], [3, 4]], [2, 10])
    codes, scales = frames.codes_of(chunk, body, rows.nbytes)
    assert (codes.tolist(), scales.tolist()) == (5000 * [-1], [1, 0.5])
    assert (rows.nbytes, chunk.nbytes) == (16, 5008)
