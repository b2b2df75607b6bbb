"""A definition's teacher behind a server: the same bits as in the student's process."""

import pytest
import torch
from safetensors.torch import save_file

from edl.common.errors import DefinitionError
from edl.common.identity import Identity
from edl.distill import tree
from edl.distill.link import TeacherLink
from edl.distill.server import Teacher
from edl.distill.teachers import Rules, Teachers
from edl.distill.teaching import Teaching, fingerprint
from edl.model_zoo import mnist_cnn
from edl.model_zoo.spec import load_definition

CPU = torch.device("cpu")
IDENTITY = Identity("the job's token")


@pytest.fixture
def definition(tmp_path):
    """Return taught_lenet with a teacher of random values."""
    torch.manual_seed(3)
    save_file(mnist_cnn.model().state_dict(), tmp_path / "model.safetensors")
    weights = str(tmp_path / "model.safetensors")
    return load_definition("taught_lenet", teacher_params={"weights": weights})


def test_logits_have_the_bits_of_the_same_model_in_this_process(definition):
    """With batches of the student's minibatches; the last one is smaller, as in a job."""
    batches = list(torch.rand(100, 1, 8, 8).split(32))
    teacher = Teacher(identity=IDENTITY)
    teacher.begin(Teaching(definition, CPU, replies="float32"), {}, max_batch_size=32)
    student = Teachers(lambda where: TeacherLink(where, IDENTITY), Rules())
    student.update([f"127.0.0.1:{teacher.listening.tcp_port}"])
    try:
        questions = [student.ask(batch) for batch in batches]
        answers = [student.answer(each, 32) for each in questions]
    finally:
        student.close()
        teacher.close()

    model = definition.teacher()
    with torch.no_grad():
        for batch, answer in zip(batches, answers, strict=True):
            assert torch.equal(model(batch), answer)


def test_replies_may_be_half_as_wide(definition):
    (part,) = Teaching(definition, CPU, replies="float16")(
        tree.parts_of(torch.rand(4, 1, 8, 8), "it"), 4
    )
    assert part.values.dtype.name == "float16"


def test_a_fingerprint_tells_teachers_apart(definition):
    same, other = definition.teacher(), definition.teacher()
    with torch.no_grad():
        next(other.parameters()).add_(1e-3)

    made = fingerprint(definition, definition.teacher())

    assert made == fingerprint(definition, same)
    assert made != fingerprint(definition, other)
    assert made != fingerprint(definition, same, "float16")


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"weights": "/none"}, "finds no /none: train mnist_cnn"),
        ({"wieghts": "x"}, "does not take --teacher_params"),
    ],
)
def test_a_teacher_that_cannot_be_made_is_named(params, said):
    with pytest.raises(DefinitionError, match=said):
        load_definition("taught_lenet", teacher_params=params).teacher()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_tensor_of_no_dimension_is_told_too(definition, dtype):
    """Broken once: no teacher with BatchNorm could start, which counts batches in one."""
    model = torch.nn.BatchNorm1d(3)
    model.register_buffer("scale", torch.tensor(2, dtype=dtype))
    before = fingerprint(definition, model)
    model.num_batches_tracked += 1
    after = fingerprint(definition, model)
    model.scale += 1

    assert len({before, after, fingerprint(definition, model)}) == 3
