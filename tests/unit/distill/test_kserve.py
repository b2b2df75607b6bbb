"""A student's end of a foreign model, over real sockets: HTTP and gRPC to a stand-in of Triton."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tools.certificates import certified
from tools.kserve import Fault, Spec, StandIn
from tools.proxy import Proxy
from tools.turns import examples

from edl.common.errors import Unreachable, UsageError
from edl.common.identity import Identity
from edl.distill import DistillReader, Rules
from edl.distill.frames import Part
from edl.distill.kserve.carrier import HEADERS_VARIABLE
from edl.distill.kserve.link import check_addresses, connect
from edl.distill.link import Busy, Refused
from edl.distill.teachers import Teachers, Untaught

IDENTITY = Identity("the job's token")  # no foreign server learns of it
FAR_S = 60.0
CARRIERS = ("http", "grpc")
X = np.arange(6, dtype=np.float32).reshape(3, 2)
NUMPYS = {
    "BOOL": "?", "INT8": "i1", "INT16": "i2", "INT32": "i4", "INT64": "i8", "UINT8": "u1",
    "UINT16": "u2", "UINT32": "u4", "UINT64": "u8", "FP16": "f2", "FP32": "f4", "FP64": "f8",
    "BF16": "u2",
}  # fmt: skip


def double(given_arrays):
    return {"logits": 2 * given_arrays["x"]}


class Place:
    """A server, and links to it; all end with the test."""

    def __init__(self):
        self.server = StandIn(
            [Spec("x", "FP32", [-1, 2])], [Spec("logits", "FP32", [-1, 2])], double
        )
        self.ends = []

    def link(self, carrier, **url):
        made = connect(self.server.url(carrier, **url), IDENTITY)
        self.ends.append(made.close)
        return made

    def student(self, *addresses, **rules):
        made = Teachers(lambda where: connect(where, IDENTITY), Rules(wait_s=FAR_S, **rules))
        self.ends.append(made.close)
        made.update(addresses)
        return made


@pytest.fixture
def place():
    here = Place()
    with here.server:
        yield here
        for end in reversed(here.ends):
            end()


def teach(link, values=X, timeout_s=FAR_S, whole=False):
    """Ask about one array; return the lone array that comes back."""
    answer = link.teach([Part("/x", values)], len(values), timeout_s, whole)
    (part,) = answer.parts
    assert part.name == ""
    return part.values


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_numbers_of_every_kind_come_back_as_they_went(place, carrier, raw):
    server = place.server
    server.writes_raw, server.compute = raw, lambda them: {"logits": them["x"]}
    kinds = [each for each in NUMPYS if raw or each not in ("FP16", "BF16")]
    shapes = arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)

    @settings(max_examples=examples(40))
    @given(st.data(), st.sampled_from(kinds), shapes)
    def check(data, datatype, shape):
        free = {"allow_nan": raw} if datatype.startswith("FP") else None
        values = data.draw(arrays.arrays(NUMPYS[datatype], shape, elements=free))
        server.inputs = [Spec("x", datatype, [-1, *shape[1:]])]
        server.outputs = [Spec("logits", datatype, [-1, *shape[1:]])]
        link = connect(server.url(carrier), IDENTITY)
        try:
            part = Part("/it", values, datatype == "BF16")
            (found,) = link.teach([part], len(values), FAR_S, False).parts
        finally:
            link.close()
        assert (datatype == "BF16", values.dtype) == (found.is_bfloat16, found.values.dtype)
        assert values.shape == found.values.shape
        assert values.tobytes() == found.values.tobytes()

    check()


def test_a_server_that_takes_json_alone_is_asked_in_json(place):
    place.server.extensions = ()
    link = place.link("http")
    np.testing.assert_array_equal(2 * X, teach(link))
    assert "inference-header-content-length" not in place.server.headers

    with pytest.raises(Refused, match="NaN or infinity.*JSON"):
        teach(link, np.full((1, 2), np.inf, np.float32))

    # There is no word for these in JSON, so that it gets bytes, and says that it takes none.
    place.server.inputs = [Spec("x", "FP16", [-1, 2])]
    with pytest.raises(Refused, match="takes JSON alone"):
        teach(link, X.astype(np.float16))


@pytest.mark.parametrize("carrier", CARRIERS)
def test_several_inputs_and_outputs_by_name(place, carrier):
    place.server.inputs = [Spec("ids", "INT64", [-1]), Spec("x", "FP32", [-1, 2])]
    place.server.outputs = [Spec("a:0", "FP32", [-1, 2]), Spec("b", "INT64", [-1])]
    place.server.compute = lambda them: {"a:0": 2 * them["x"], "b": them["ids"] + 1}
    student = place.student(place.server.url(carrier))

    features = {"some": {"x": torch.from_numpy(X)}, "ids": torch.arange(3)}
    answer = student.answer(student.ask(features), 3)

    assert ["a:0", "b"] == list(answer)
    assert torch.equal(torch.from_numpy(2 * X), answer["a:0"])
    assert torch.equal(torch.arange(1, 4), answer["b"])


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_version_is_asked_for_by_its_name(place, carrier):
    np.testing.assert_array_equal(2 * X, teach(place.link(carrier, version="1")))
    with pytest.raises(Refused, match="unknown version 2"):
        teach(place.link(carrier, version="2"))
    with pytest.raises(Refused, match="unknown model: 'other one'"):
        teach(place.link(carrier, model="other%20one"))
    if carrier == "http":
        assert "v2/models/teacher/versions/1/infer" in place.server.calls


@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_does_not_fit_the_model_is_a_sentence_and_is_looked_at_again(place, carrier):
    link = place.link(carrier)
    with pytest.raises(Refused, match=r"'/x' is FP64 \[3, 2\], and the model takes 'x' \(FP32"):
        teach(link, X.astype(np.float64))
    assert [] == place.server.rows

    # The server's model is another by now.
    place.server.inputs = [Spec("x", "FP64", [-1, 2])]
    np.testing.assert_array_equal(2 * X, teach(link, X.astype(np.float64)))


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("INVALID_ARG", Refused, "it is wrong"),
        ("NOT_FOUND", Refused, "it is wrong"),
        ("INTERNAL", Refused, "it is wrong"),
        ("MAY_NOT", Refused, HEADERS_VARIABLE),
        ("TOO_MANY", Busy, "it is wrong"),
    ],
)
def test_what_a_server_says_of_an_error(place, carrier, kind, error, text):
    def fail(_):
        raise Fault(kind, "it is wrong")

    place.server.compute = fail
    with pytest.raises(error, match=text) as found:
        teach(place.link(carrier))
    assert type(found.value) in (Refused, Busy)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("carrier", "text", "error"),
    [
        ("http", "Exceeds maximum queue size", Busy),
        ("grpc", "Exceeds maximum queue size", Busy),
        ("http", "unloading", Busy),
        ("grpc", "unloading", Unreachable),
    ],
)
def test_a_full_or_ending_server_is_left_alone_for_a_while(place, carrier, text, error):
    def fail(_):
        raise Fault("UNAVAILABLE", text)

    place.server.compute = fail
    with pytest.raises(error, match=text):
        teach(place.link(carrier))


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_server_that_still_loads_its_models_is_no_wrong_teacher(place, carrier):
    place.server.is_ready, link = False, place.link(carrier, model="later")
    with pytest.raises(Unreachable, match="not ready"):
        teach(link)

    place.server.is_ready, place.server.model = True, "later"
    np.testing.assert_array_equal(2 * X, teach(link))


@pytest.mark.parametrize("carrier", CARRIERS)
def test_nobody_answers(carrier):
    with socket.socket() as bound:  # which does not listen
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        link = connect(f"kserve+{carrier}://127.0.0.1:{port}/m", IDENTITY)
        with pytest.raises(Unreachable, match=f"{port}/m"):
            teach(link, timeout_s=5.0)
        link.close()


@pytest.mark.parametrize("carrier", CARRIERS)
def test_an_answer_has_a_deadline_and_the_next_one_its_own(place, carrier):
    gate = threading.Event()

    def wait(them):
        gate.wait(FAR_S)
        return double(them)

    link = place.link(carrier)
    teach(link)
    place.server.compute = wait
    began = time.monotonic()
    with pytest.raises(Unreachable):
        teach(link, timeout_s=0.3)
    assert time.monotonic() - began < 5.0
    gate.set()
    np.testing.assert_array_equal(2 * X, teach(link))


def test_bytes_that_drip_do_not_stretch_a_deadline():
    pause, listener = threading.Event(), socket.create_server(("127.0.0.1", 0))

    def drip():
        there, _ = listener.accept()
        with there, contextlib.suppress(OSError):
            there.sendall(b"HTTP/1.1 200 OK\r\nX-Drop: ")
            while not pause.wait(0.01):
                there.sendall(b"a")

    thread = threading.Thread(target=drip)
    thread.start()
    link = connect(f"kserve+http://127.0.0.1:{listener.getsockname()[1]}/m", IDENTITY)
    began = time.monotonic()
    with pytest.raises(Unreachable, match="timed out"):
        teach(link, timeout_s=0.2)
    took_s = time.monotonic() - began
    pause.set()
    thread.join(FAR_S)
    listener.close()
    link.close()
    assert took_s < 5.0


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_connection_that_goes_deaf_is_made_anew(place, carrier):
    with Proxy(place.server.target(carrier)) as proxy:
        link = connect(f"kserve+{carrier}://{proxy.address}/teacher", IDENTITY)
        teach(link)
        proxy.go_deaf()
        with pytest.raises(Unreachable):
            teach(link, timeout_s=0.5)
        np.testing.assert_array_equal(2 * X, teach(link, timeout_s=20.0))
        link.close()


@pytest.mark.parametrize("carrier", CARRIERS)
def test_close_wakes_whoever_waits(place, carrier):
    asked, gate = threading.Event(), threading.Event()

    def wait(them):
        asked.set()
        gate.wait(FAR_S)
        return double(them)

    place.server.compute = wait
    link, found = place.link(carrier), []

    def ask():
        with pytest.raises(Unreachable):
            teach(link)
        found.append(True)

    thread = threading.Thread(target=ask)
    thread.start()
    assert asked.wait(FAR_S)
    link.close()
    thread.join(FAR_S)
    gate.set()
    assert found
    with pytest.raises(Unreachable, match="closed"):
        teach(link)


def test_a_connection_is_used_again_until_the_server_ends_it(place):
    link = place.link("http")
    for _ in range(5):
        teach(link)
    assert 1 == place.server.connections

    place.server.end_connections()
    np.testing.assert_array_equal(2 * X, teach(link))
    assert 2 == place.server.connections


def test_many_threads_ask_at_once(place):
    for carrier in CARRIERS:
        student = place.student(place.server.url(carrier))
        values = [torch.full((4, 2), float(n)) for n in range(40)]
        for value, question in [(v, student.ask({"x": v})) for v in values]:
            assert torch.equal(2 * value, student.answer(question, 4))


@pytest.mark.parametrize("carrier", CARRIERS)
def test_rows_beyond_the_models_batch_are_asked_in_spans(place, carrier):
    place.server.max_batch_size = 8
    values = np.arange(40, dtype=np.float32).reshape(20, 2)

    np.testing.assert_array_equal(2 * values, teach(place.link(carrier), values))
    assert [8, 8, 4] == place.server.rows

    with pytest.raises(Refused, match="batch-size must be <= 8"):
        teach(place.link(carrier), values, whole=True)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_server_that_encrypts_must_be_trusted(carrier, tmp_path, monkeypatch):
    files = certified(tmp_path)
    server = Place().server
    server.certified = files
    with server:
        monkeypatch.setenv("SSL_CERT_FILE", files[0])
        link = connect(server.url(carrier), IDENTITY)
        np.testing.assert_array_equal(2 * X, teach(link))
        link.close()

        (tmp_path / "other").mkdir()
        monkeypatch.setenv("SSL_CERT_FILE", certified(tmp_path / "other")[0])
        link = connect(server.url(carrier), IDENTITY)
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            teach(link, timeout_s=5.0)
        link.close()


@pytest.mark.parametrize("carrier", CARRIERS)
def test_headers_are_sent_and_the_identity_is_not(place, carrier, monkeypatch):
    monkeypatch.setenv(HEADERS_VARIABLE, "Authorization: Bearer abc:d\nX-Team: vision\n")
    teach(place.link(carrier))
    headers = place.server.headers
    assert ("Bearer abc:d", "vision") == (headers["authorization"], headers["x-team"])
    assert IDENTITY.token not in str(headers)

    monkeypatch.setenv(HEADERS_VARIABLE, "Bearer secret")
    for use in (lambda: place.link(carrier), lambda: check_addresses([place.server.url(carrier)])):
        with pytest.raises(UsageError, match="Name: value") as error:
            use()
        assert "secret" not in str(error.value)
    check_addresses(["10.0.0.5:7000"])


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_foreign_teacher_that_answers_nan_is_asked_no_more(place, carrier):
    place.server.compute = lambda them: {"logits": np.full_like(them["x"], np.nan)}
    address = place.server.url(carrier)
    student = place.student(address, without="fail")
    notes = []
    student._on_note = notes.append

    with pytest.raises(Untaught):
        student.answer(student.ask({"x": torch.from_numpy(X)}), 3)

    assert [f"the teacher at {address} is asked no more: it answers NaN in ''"] == notes


@pytest.mark.parametrize("carrier", CARRIERS)
def test_features_that_no_model_takes_are_told_to_the_user(place, carrier):
    student = place.student(place.server.url(carrier))
    with pytest.raises(Untaught, match=r"refuse it.*'/x' is INT64 \[3\].*'x' \(FP32 \[-1, 2\]\)"):
        student.answer(student.ask({"x": torch.arange(3)}), 3)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_script_of_ones_own_reads_what_a_foreign_model_says(place, carrier):
    reader = DistillReader(["image", "label"], ["logits"])
    reader.set_fixed_teacher(place.server.url(carrier))
    batches = [(torch.full((4, 2), float(n)), torch.arange(4)) for n in range(5)]

    found = list(reader.wrap(batches))

    for (image, label), (same, its, logits) in zip(batches, found, strict=True):
        assert torch.equal(image, same)
        assert torch.equal(label, its)
        assert torch.equal(2 * image, logits)


def test_a_reader_refuses_what_is_no_address():
    with pytest.raises(UsageError, match="'http://h:1/m' is of no known kind"):
        DistillReader(["x"]).set_fixed_teacher(["a:1", "http://h:1/m"])
