"""Answers that nobody can learn from: they are the teacher's fault, and it is told by its name.

A test's docstring says what was broken once to see it fail.
"""

import numpy as np
import pytest
import torch

from edl.common.errors import EdlError
from edl.common.identity import Identity
from edl.distill import Rules, tree
from edl.distill.frames import Part
from edl.distill.kserve.tensors import listed_part
from edl.distill.link import Answer, Refused, TeacherLink
from edl.distill.segments import Damaged, Rows, pack, read_parts
from edl.distill.server import Teacher
from edl.distill.teachers import Teachers, Untaught
from edl.distill.teaching import Teaching
from edl.model_zoo.spec import load_definition

FAR_S = 60.0
IDENTITY = Identity("the job's token")
PUPIL = """
import torch
from torch import nn
def teacher(): return nn.Identity()
def model(): return nn.Identity()
def feed(records, mode): ...
def loss(outputs, labels, teacher): ...
def optimizer(): ...
"""


@pytest.fixture
def teaching(tmp_path):
    """Return a teacher that answers what it is asked, in float16."""
    (tmp_path / "echo.py").write_text(PUPIL)
    definition = load_definition(str(tmp_path / "echo.py"))
    return Teaching(definition, torch.device("cpu"), replies="float16")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (70_000.0, r"answers 70000 in '', and float16 ends at 65504.*replies of float32"),
        (-70_000.0, "answers -70000 .*; -inf masks a class"),
    ],
)
def test_what_float16_cannot_hold_is_refused(teaching, dtype, value, said):
    """Broken once: it becomes infinite, and the records are blamed for the loss."""
    values = torch.tensor([[1.0], [value]], dtype=dtype)
    with pytest.raises(EdlError, match=said):
        teaching(tree.parts_of(values, "it"), 2)


def test_what_float16_holds_and_a_mask_are_narrowed(teaching):
    values = torch.tensor([[65504.0, -65504.0, -torch.inf, 1e-9]])
    (part,) = teaching(tree.parts_of(values, "it"), 1)

    np.testing.assert_array_equal(values.half().numpy(), part.values)
    assert "" == tree.fault_of([part], 1)


def test_a_student_is_told_in_one_sentence_that_names_the_teacher(teaching):
    notes = []
    teacher = Teacher(identity=IDENTITY)
    teacher.begin(teaching, {}, max_batch_size=4)
    address = f"127.0.0.1:{teacher.listening.tcp_port}"
    student = Teachers(lambda at: TeacherLink(at, IDENTITY), Rules(FAR_S), on_note=notes.append)
    student.update([address])
    try:
        with pytest.raises(Untaught, match=f"refuse it: the last, at {address}, says: it answers"):
            student.answer(student.ask(torch.full((2, 1), 7e4)), 2)
    finally:
        student.close()
        teacher.close()

    (note,) = notes
    assert note.startswith(f"the teacher at {address} is asked no more: it answers 70000 in ''")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("wrong", [torch.inf, torch.nan])
def test_infinity_and_nan_are_no_answers_and_a_mask_is_one(dtype, wrong):
    """Broken once: infinities are let through."""
    (good,) = tree.parts_of(torch.tensor([[1.0], [-torch.inf]], dtype=dtype), "it")
    (bad,) = tree.parts_of(torch.tensor([[1.0], [wrong]], dtype=dtype), "it")

    assert "" == tree.fault_of([good], 2)
    said = "NaN" if np.isnan(wrong) else "+inf"
    assert f"it answers {said} in ''" in tree.fault_of([bad], 2)


def test_whole_numbers_and_no_rows_are_answers():
    assert "" == tree.fault_of([Part("", np.array([2**63], np.uint64))], 1)
    assert "" == tree.fault_of([Part("", np.zeros((0, 3), np.float32))], 0)


@pytest.mark.parametrize("value", [1e39, -1e39])
def test_a_foreign_number_that_its_datatype_cannot_hold_is_wrong(value):
    """Broken once: JSON's -1e39 of FP32 becomes -inf, which is a mask."""
    with pytest.raises(ValueError, match="the output 'y' of FP32 has larger values: -?1e"):
        listed_part("y", "FP32", [2], [1.0, value])

    found = listed_part("y", "FP32", [2], [-float("inf"), 1.0])
    np.testing.assert_array_equal([-np.inf, 1.0], found.values)


def test_what_an_earlier_edl_has_kept_of_such_is_asked_again(tmp_path):
    """Broken once: a cache answers it."""
    rows = Rows(["s"], np.zeros((1, 4), np.int64))
    name, data = pack("ab" * 16, rows, [Part("", np.array([[np.inf]], np.float16))])
    (tmp_path / name).write_bytes(data)

    with pytest.raises(Damaged, match=r"of its answers: it answers \+inf"):
        read_parts(tmp_path / name, 1)


class Picky:
    """A teacher that refuses 7, as two that take turns."""

    def teach(self, parts, _rows, _timeout_s, _whole):
        if parts[0].values[0] == 7:
            raise Refused("7 is too much")
        return Answer(list(parts), 0, 1)

    def close(self):
        pass


def test_a_minibatch_that_goes_on_without_an_answer_is_told_once():
    """Broken once: with hard labels nobody hears of it."""
    notes = []
    rules = Rules(FAR_S, "hard_labels")
    student = Teachers(lambda _: Picky(), rules, on_note=notes.append)
    student.update(["h:1", "h:2"])
    found = [student.answer(student.ask(torch.tensor([n])), 1) for n in (1, 7, 2, 7, 3)]
    student.close()

    assert [1, None, 2, None, 3] == [None if each is None else int(each) for each in found]
    (note,) = notes
    assert "a minibatch goes on with hard labels: the teachers refuse it: the last, at h:" in note
