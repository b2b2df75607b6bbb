"""A student and its teachers over real sockets: answers, order, faults of teachers."""

import random
import socket
import threading
import time

import numpy as np
import pytest
import torch

from edl.common.errors import EdlError, Unreachable
from edl.common.identity import Identity
from edl.distill import frames, tree
from edl.distill.link import Busy, Refused, TeacherLink
from edl.distill.server import Teacher
from edl.distill.teachers import Rules, Teachers, Untaught
from edl.wire.handshake import greet

IDENTITY = Identity("the job's token")
FAR_S = 60.0


def double(parts, _rows):
    """Answer twice what was asked."""
    return [frames.Part(part.name, 2 * part.values) for part in parts]


class Place:
    """Teachers that a test starts, and students; all end with it."""

    def __init__(self):
        self.ends = []

    def teacher(self, teach=double, **options):
        queued = {"max_queued": options.pop("max_queued", 1 << 14)}
        made = Teacher(identity=options.pop("identity", IDENTITY), **queued)
        self.ends.append(made.close)
        made.begin(teach, {"kind": "test"}, **options)
        return made

    def link(self, teacher, identity=IDENTITY):
        made = TeacherLink(address(teacher), identity)
        self.ends.append(made.close)
        return made

    def student(self, *teachers, rules=None, **options):
        rules = rules or Rules(wait_s=FAR_S)
        made = Teachers(lambda where: TeacherLink(where, IDENTITY), rules, **options)
        self.ends.append(made.close)
        made.update([address(each) for each in teachers])
        return made


def address(teacher):
    return f"127.0.0.1:{teacher.listening.tcp_port}"


@pytest.fixture
def place():
    here = Place()
    yield here
    for end in reversed(here.ends):
        end()


def ask(student, values, records=None):
    """Ask about a tensor, and wait."""
    return student.answer(student.ask(values), len(values) if records is None else records)


def test_a_slow_teacher_has_all_of_its_time(place, monkeypatch):
    """Streams count their time of silence 50 times as fast. Broken once: links give up after 10 s.

    A minibatch that waits behind others at a large model takes longer than that.
    """

    def hasty(sock, identity, tls, deadline, stall_s, shard):
        return greet(sock, identity, tls, deadline, stall_s / 50, shard)

    def slow(parts, rows):
        time.sleep(0.3)
        return double(parts, rows)

    monkeypatch.setattr("edl.wire.reach.greet", hasty)
    parts = tree.parts_of(torch.ones(4), "it")
    answer = place.link(place.teacher(slow, max_batch_size=4)).teach(parts, 4, FAR_S, False)

    assert [2.0] * 4 == answer.parts[0].values.tolist()


@pytest.mark.parametrize("rows", [1, 5, 50_000])  # a large one is shared memory's
@pytest.mark.parametrize("apart", [False, True])
def test_an_answer_is_of_what_was_asked(place, monkeypatch, rows, apart):
    if apart:  # as from another host, but for TLS
        monkeypatch.setattr("edl.distill.link.host_id", lambda: "another")
    link = place.link(place.teacher())
    for seed in range(3):
        values = np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)
        parts = [frames.Part("/x", values), frames.Part("/y", np.arange(rows))]
        answer = link.teach(parts, rows, FAR_S, False)
        np.testing.assert_array_equal(2 * values, answer.parts[0].values)
        np.testing.assert_array_equal(2 * np.arange(rows), answer.parts[1].values)


def test_requests_are_merged_and_each_gets_its_own(place):
    gate, sizes = threading.Event(), []

    def teach(parts, rows):
        sizes.append(rows)
        assert gate.wait(FAR_S)
        return double(parts, rows)

    teacher = place.teacher(teach, max_batch_size=16)
    student = place.student(teacher)
    questions = [student.ask(torch.arange(4) + 10 * n) for n in range(6)]
    until(lambda: teacher.queued + sum(sizes) == 24)
    gate.set()

    for n, question in enumerate(questions):
        assert torch.equal(2 * (torch.arange(4) + 10 * n), student.answer(question, 4))
    assert sum(sizes) == 24
    assert len(sizes) <= 3  # whatever was there first, and then whole batches


def test_a_request_larger_than_a_batch_is_split(place):
    sizes = []

    def teach(parts, rows):
        sizes.append(rows)
        return double(parts, rows)

    student = place.student(place.teacher(teach, max_batch_size=8))

    assert torch.equal(2 * torch.arange(20), ask(student, torch.arange(20)))
    assert sizes == [8, 8, 4]


def test_features_without_common_rows_are_computed_alone(place):
    seen = []

    def teach(parts, _rows):
        seen.append([part.values.shape for part in parts])
        return [frames.Part("", parts[0].values[:2])]

    student = place.student(place.teacher(teach, max_batch_size=64))

    found = ask(student, (torch.arange(5), torch.arange(3)), 2)

    assert torch.equal(torch.arange(2), found)
    assert seen == [[(5,), (3,)]]


def test_the_batch_size_is_searched_at_the_first_request(place):
    teacher = place.teacher()
    assert teacher.max_batch_size == 0

    ask(place.student(teacher), torch.zeros(3, 2))

    assert teacher.max_batch_size >= 4


def test_who_has_no_room_says_so(place):
    gate, begun = threading.Event(), threading.Event()

    def teach(parts, rows):
        begun.set()
        assert gate.wait(FAR_S)
        return double(parts, rows)

    teacher = place.teacher(teach, max_batch_size=4, max_queued=4)
    parts = tree.parts_of(torch.arange(4), "it")
    waiting = [
        threading.Thread(target=place.link(teacher).teach, args=(parts, 4, FAR_S, False))
        for _ in range(2)
    ]
    waiting[0].start()
    assert begun.wait(FAR_S)
    waiting[1].start()
    until(lambda: teacher.queued == 4)

    with pytest.raises(Busy, match="4 rows wait"):
        place.link(teacher).teach(parts, 4, FAR_S, False)
    gate.set()
    for thread in waiting:
        thread.join(FAR_S)


def test_an_error_of_the_model_is_told(place):
    def teach(parts, rows):
        raise ValueError("no such feature")

    link = place.link(place.teacher(teach, max_batch_size=4))
    for _ in range(2):  # the connection stays
        with pytest.raises(Refused, match="ValueError: no such feature"):
            link.teach(tree.parts_of(torch.arange(2), "it"), 2, FAR_S, False)


def test_another_jobs_student_is_refused(place):
    link = place.link(place.teacher(), Identity("another token"))

    with pytest.raises(EdlError, match="token"):
        link.about()


def test_nobody_there_is_unreachable():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Unreachable, match=f"no teacher at 127.0.0.1:{port}"):
        TeacherLink(f"127.0.0.1:{port}", IDENTITY).about()


def test_tls_between_hosts(place, monkeypatch):
    certified = Identity.create("the job's token")
    monkeypatch.setattr("edl.wire.reach.is_loopback", lambda _host: False)
    monkeypatch.setattr("edl.distill.link.host_id", lambda: "another")
    teacher = place.teacher(identity=certified)
    link = place.link(teacher, certified)

    answer = link.teach(tree.parts_of(torch.arange(7), "it"), 7, FAR_S, False)

    np.testing.assert_array_equal(2 * np.arange(7), answer.parts[0].values)


# -- several teachers


def test_one_that_dies_is_asked_no_more_and_nothing_is_lost(place):
    gate = threading.Event()

    def hang(_parts, _rows):
        gate.wait(FAR_S)
        raise ValueError("too late")

    dying, other = place.teacher(hang, max_batch_size=4), place.teacher(max_batch_size=4)
    student = place.student(dying, other)
    questions = [student.ask(torch.arange(4) + n) for n in range(12)]
    until(lambda: dying._busy)
    dying.close()

    for n, question in enumerate(questions):
        assert torch.equal(2 * (torch.arange(4) + n), student.answer(question, 4))
    gate.set()
    assert (student.taught, student.untaught) == (48, 0)


def test_the_last_question_is_passed_on_too_where_nobody_asks_any_more(place):
    """Broken once: those who carry sleep until the next question."""
    gate, slow = threading.Event(), threading.Event()

    def sometimes(parts, rows):
        if slow.is_set():
            gate.wait(FAR_S)
        return double(parts, rows)

    student = place.student(
        place.teacher(sometimes, max_batch_size=4), place.teacher(sometimes, max_batch_size=4)
    )
    for n in range(40):
        ask(student, torch.arange(4) + n)
    slow.set()
    question = student.ask(torch.arange(4))
    until(lambda: len(question.asked) == 2)
    gate.set()

    assert torch.equal(2 * torch.arange(4), student.answer(question, 4))


def test_one_that_hangs_is_passed_over_by_a_second_request(place):
    gate = threading.Event()
    slow = threading.Event()

    def sometimes(parts, rows):
        if slow.is_set():
            gate.wait(FAR_S)
        return double(parts, rows)

    first, second = place.teacher(sometimes, max_batch_size=4), place.teacher(max_batch_size=4)
    student = place.student(first, second)
    for n in range(40):  # until it is known what is late
        ask(student, torch.arange(4) + n)
    slow.set()

    for n in range(20):
        assert torch.equal(2 * (torch.arange(4) + n), ask(student, torch.arange(4) + n))
    gate.set()


@pytest.mark.parametrize(
    ("lie", "what"),
    [
        (lambda parts, rows: [frames.Part("", np.full((rows, 2), np.nan, np.float32))], "NaN"),
        (lambda parts, rows: [], "nothing"),
    ],
)
def test_one_that_lies_is_taken_out_and_the_record_is_taught(place, lie, what):
    notes = []
    liar, honest = place.teacher(lie, max_batch_size=4), place.teacher(max_batch_size=4)
    student = place.student(liar, honest, on_note=notes.append)

    for n in range(30):
        assert torch.equal(2 * (torch.arange(4) + n), ask(student, torch.arange(4) + n))

    assert [address(honest)] == student.there
    assert len(notes) == 1
    assert what in notes[0]
    student.update([address(liar), address(honest)])
    assert [address(honest)] == student.there


def test_one_that_refuses_everything_is_no_reason_to_give_a_question_up(place):
    """Broken once: a question is given up that one of two teachers has refused three times."""
    gate = threading.Event()

    def refuse(parts, rows):
        raise ValueError("ill")

    def held(parts, rows):
        gate.wait(FAR_S)
        return double(parts, rows)

    ill, well = place.teacher(refuse, max_batch_size=4), place.teacher(held, max_batch_size=4)
    student = place.student(ill, well)
    questions = [student.ask(torch.arange(4) + n) for n in range(8)]
    until(lambda: student.there == [address(well)])
    gate.set()

    for n, question in enumerate(questions):
        assert torch.equal(2 * (torch.arange(4) + n), student.answer(question, 4))
    assert max(question.refusals for question in questions) <= 1


def test_a_question_that_all_refuse_is_given_up_and_they_are_asked_others(place):
    def picky(parts, rows):
        if parts[0].values[0] == 7:
            raise ValueError("7 is too much")
        return double(parts, rows)

    student = place.student(place.teacher(picky, max_batch_size=4), place.teacher(picky))

    with pytest.raises(Untaught, match="the teachers refuse it: .*7 is too much"):
        ask(student, torch.arange(4) + 7)
    assert len(student.there) == 2
    assert torch.equal(2 * torch.arange(4), ask(student, torch.arange(4)))


def test_a_wrong_number_of_rows_is_a_lie(place):
    student = place.student(place.teacher(lambda parts, rows: [], max_batch_size=4))
    question = student.ask(torch.arange(4))
    question.whole = False

    with pytest.raises(Untaught, match="1 answered wrongly"):
        student.answer(question, 4) if not student.there else wait_out(student, question)


def wait_out(student, question):
    """Wait until the one teacher is out, under rules that end then."""
    until(lambda: not student.there)
    student._rules = Rules(wait_s=0.0)
    return student.answer(question, 4)


# -- without teachers


def test_hard_labels_where_nobody_is_there_any_more(place):
    student = place.student(place.teacher(), rules=Rules(FAR_S, "hard_labels"))
    assert ask(student, torch.arange(4)) is not None
    student.update([])

    assert ask(student, torch.arange(4)) is None
    assert (student.taught, student.untaught) == (4, 4)


def test_fail_where_nobody_is_there_any_more(place):
    student = place.student(place.teacher(), rules=Rules(FAR_S, "fail"))
    ask(student, torch.arange(4))
    student.update([])

    with pytest.raises(Untaught, match="no teacher is there: start some"):
        ask(student, torch.arange(4))


def test_wait_ends_in_time(place):
    with pytest.raises(Untaught, match="no teacher is there"):
        ask(place.student(rules=Rules(0.05)), torch.arange(4))


def test_it_is_told_once_that_nobody_is_there_to_wait_for(place, monkeypatch):
    monkeypatch.setattr("edl.distill.teachers._LOOK_S", 0.01)
    notes = []
    student = place.student(rules=Rules(0.1), on_note=notes.append)
    for _ in range(2):
        with pytest.raises(Untaught):
            ask(student, torch.arange(4))

    (note,) = notes
    assert note.startswith("the student waits for up to 0 s: no teacher is there: start some")


def test_why_nobody_answers_is_told(place):
    student = place.student(rules=Rules(0.3))
    student.update([address(place.teacher(identity=Identity("another token")))])

    with pytest.raises(Untaught, match="no teacher has answered for 0.3 s.*job's token"):
        ask(student, torch.arange(4))


def test_a_teacher_that_comes_answers_what_was_asked_before(place):
    student = place.student()
    question = student.ask(torch.arange(4))
    student.update([address(place.teacher())])

    assert torch.equal(2 * torch.arange(4), student.answer(question, 4))


def test_nobody_is_asked_what_nobody_waits_for(place):
    sizes = []

    def teach(parts, rows):
        sizes.append(rows)
        return double(parts, rows)

    student = place.student()
    for n in range(5):
        student.ask(torch.zeros(100 + n))
    last = student.ask(torch.zeros(7))
    student.update([address(place.teacher(teach, max_batch_size=999))])

    student.answer(last, 7)
    assert sizes == [7]


def test_the_window_is_bounded_by_bytes(place):
    student = place.student(rules=Rules(window=8, window_nbytes=4000))
    assert student.ahead == 8
    student.ask(torch.zeros(500))
    assert student.ahead == 2
    student.ask(torch.zeros(5000))
    assert student.ahead == 1


def until(true):
    """Wait for what another thread does."""
    pause = threading.Event()
    for _ in range(int(FAR_S * 200)):
        if true():
            return
        pause.wait(0.005)
    raise AssertionError("it never came")


def test_the_peers_bytes_end_its_connection_and_no_other(place):
    """Random bytes after a handshake: the teacher goes on."""
    teacher = place.teacher(max_batch_size=8)
    link = place.link(teacher)
    rng = random.Random(1)
    for _ in range(20):
        there = link._tcp(deadline())
        there.stream.write(rng.randbytes(rng.randint(1, 200)), deadline())
        there.stream.close()

    answer = link.teach(tree.parts_of(torch.arange(3), "it"), 3, FAR_S, False)
    np.testing.assert_array_equal(2 * np.arange(3), answer.parts[0].values)
    until(lambda: len(teacher._peers) <= 2)


def deadline():
    return time.monotonic() + FAR_S


def test_who_comes_back_at_an_address_is_asked_anew_who_it_is(place):
    """Broken once: TeacherLink keeps what the first one told."""
    first = place.teacher()
    link = place.link(first)
    link.teach([frames.Part("", np.arange(3))], 3, FAR_S, False)
    assert {"kind": "test"}.items() <= link.about().items()
    first.close()
    second = Teacher(identity=IDENTITY, port=first.listening.tcp_port)
    place.ends.append(second.close)
    second.begin(double, {"kind": "another"})

    with pytest.raises(Unreachable):
        link.teach([frames.Part("", np.arange(3))], 3, FAR_S, False)

    assert link.about()["kind"] == "another"
