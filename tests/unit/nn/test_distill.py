"""The losses of distillation against the papers' formulas in float64, and torch's gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from edl.nn import distill

LOGITS = np.random.default_rng(3)


def softmax(logits, temperature=1.0):
    """Return the distribution, in float64."""
    scaled = np.asarray(logits, np.float64) / temperature
    powers = np.exp(scaled - scaled.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def divergence(wanted, given):
    """Return the mean over records of KL(wanted || given), in float64."""
    return float((wanted * (np.log(wanted) - np.log(given))).sum(-1).mean())


def logits(*shape, scale=3.0):
    return torch.from_numpy(LOGITS.normal(0, scale, shape).astype(np.float32))


@given(st.integers(0, 2**32 - 1), st.floats(0.5, 8.0), st.integers(2, 40), st.integers(1, 9))
def test_kl_is_the_papers(seed, temperature, classes, records):
    rng = np.random.default_rng(seed)
    student, teacher = rng.normal(0, 4, (2, records, classes))
    wanted = divergence(softmax(teacher, temperature), softmax(student, temperature))

    found = distill.kl(torch.from_numpy(student), torch.from_numpy(teacher), temperature)

    assert float(found) == pytest.approx(wanted * temperature**2, rel=1e-9, abs=1e-12)


def test_gradient_of_kl_goes_to_that_of_logits_at_a_high_temperature():
    """Hinton et al., section 2.1: with zero-mean logits it goes to (z - v) / N."""
    student, teacher = logits(5, 7), logits(5, 7)
    student, teacher = (x - x.mean(-1, keepdim=True) for x in (student, teacher))
    student = student.double().requires_grad_()

    distill.kl(student, teacher.double(), 1e6).backward()

    assert torch.allclose(student.grad, (student - teacher).detach() / 7 / 5, atol=1e-4)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_hinton_mixes_both_and_is_the_hard_loss_alone_without_a_teacher(alpha):
    student, teacher, labels = logits(6, 4), logits(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    hard = -np.log(softmax(student)[np.arange(6), labels]).mean()
    soft = 4.0 * divergence(softmax(teacher, 2.0), softmax(student, 2.0))

    found = distill.hinton(student, labels, teacher, temperature=2.0, alpha=alpha)

    assert float(found) == pytest.approx(alpha * soft + (1 - alpha) * hard, rel=1e-5)
    assert float(distill.hinton(student, labels, None)) == pytest.approx(hard, rel=1e-5)


def test_few_labels_are_hintons_mix_in_which_some_are_unknown():
    student, teacher, labels = logits(6, 4), logits(6, 4), torch.tensor([0, -1, 2, -1, 0, 1])
    known = labels.numpy() >= 0
    hard = -np.log(softmax(student)[known, labels[known]]).sum() / 6
    soft = 4.0 * divergence(softmax(teacher, 2.0), softmax(student, 2.0))

    found = distill.few_labels(student, labels, teacher, temperature=2.0, alpha=0.25)

    assert float(found) == pytest.approx(0.25 * soft + 0.75 * hard, rel=1e-5)
    assert float(distill.few_labels(student, labels, None)) == pytest.approx(hard, rel=1e-5)
    assert float(distill.few_labels(student, torch.full((6,), -1), None)) == 0.0


def test_mse_and_hint_are_squared_distances():
    student, teacher = logits(3, 4, 5), logits(3, 4, 5)
    squares = ((student.double() - teacher.double()) ** 2).numpy()

    assert float(distill.mse(student, teacher)) == pytest.approx(squares.mean(), rel=1e-5)
    wanted = squares.reshape(3, -1).sum(1).mean() / 2
    assert float(distill.hint(student, teacher)) == pytest.approx(wanted, rel=1e-5)


def test_hint_goes_through_the_regressor():
    regressor = nn.Linear(4, 6)
    student, teacher = logits(3, 4), logits(3, 6)

    found = distill.hint(student, teacher, regressor)

    assert torch.equal(found, distill.hint(regressor(student), teacher))


def test_top_k_with_all_classes_is_kl():
    student, teacher = logits(8, 10), logits(8, 10)
    wanted = divergence(softmax(teacher), softmax(student))

    found = distill.top_k_kl(student, distill.top_k(teacher, 10), tail=False)

    assert float(found) == pytest.approx(wanted, rel=5e-3)  # float16 on the way


def test_rest_is_one_class():
    student, teacher = logits(8, 50, scale=1.0), logits(8, 50, scale=1.0)
    told = distill.top_k(teacher, 5)
    chosen = told["classes"].numpy().astype(int)

    def grouped(distribution):
        top = np.take_along_axis(distribution, chosen, -1)
        return np.concatenate([top, 1 - top.sum(-1, keepdims=True)], -1)

    wanted = divergence(grouped(softmax(teacher)), grouped(softmax(student)))
    assert float(distill.top_k_kl(student, told)) == pytest.approx(wanted, rel=5e-3)


def test_one_class_of_which_the_teacher_is_sure_is_finite():
    told = distill.top_k(torch.tensor([[40.0, 0.0, 0.0]]), 1)

    assert torch.isfinite(distill.top_k_kl(torch.zeros(1, 3), told))


def test_top_k_is_small():
    told = distill.top_k(logits(2, 1000), 8)

    assert (torch.float16, torch.int32) == (told["log_probs"].dtype, told["classes"].dtype)
    assert (2, 8) == tuple(told["classes"].shape)


def test_mixture_is_the_weighted_mean_of_distributions():
    a, b, student = logits(4, 6), logits(4, 6), logits(4, 6)
    mixed = 0.75 * softmax(a, 2.0) + 0.25 * softmax(b, 2.0)

    found = distill.mixture([a, b], [3, 1], 2.0)

    assert np.allclose(softmax(found, 2.0), mixed, atol=1e-6)
    wanted = 4.0 * divergence(mixed, softmax(student, 2.0))
    assert float(distill.kl(student, found, 2.0)) == pytest.approx(wanted, rel=1e-4)


def test_other_shapes_and_numbers_are_refused_in_words():
    with pytest.raises(ValueError, match=r"student's \(2, 3\) and the teacher's \(2, 4\)"):
        distill.kl(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="temperature is 0"):
        distill.kl(torch.zeros(2, 3), torch.zeros(2, 3), 0)
    with pytest.raises(ValueError, match="alpha is 2"):
        distill.hinton(torch.zeros(2, 3), torch.zeros(2).long(), torch.zeros(2, 3), alpha=2)
    with pytest.raises(ValueError, match="k is 4, of 3 classes"):
        distill.top_k(torch.zeros(2, 3), 4)
    with pytest.raises(ValueError, match="1 teachers have the weights"):
        distill.mixture([torch.zeros(2, 3)], [1, 2])
    with pytest.raises(ValueError, match="not of the student's"):
        distill.top_k_kl(torch.zeros(2, 3), distill.top_k(torch.zeros(4, 3), 2))


def kl_div(student, teacher, temperature=1.0):
    """Return torch's own, of probabilities: where one is 0, the class adds 0."""
    p = torch.softmax(teacher.double() / temperature, -1)
    q = torch.log_softmax(student.double() / temperature, -1)
    return temperature**2 * torch.nn.functional.kl_div(q, p, reduction="batchmean")


def masked(logits_, share=0.4):
    """Return logits of which some are -inf, and in no row all."""
    mask = torch.from_numpy(LOGITS.random(logits_.shape)) < share
    mask[..., 0] = False
    return logits_.masked_fill(mask, -torch.inf)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_a_class_that_the_teacher_masks_adds_nothing(temperature):
    """Broken once: 0 * -inf is NaN."""
    student, teacher = logits(9, 7).requires_grad_(), masked(logits(9, 7))
    wanted = student.detach().double().requires_grad_()
    kl_div(wanted, teacher, temperature).backward()

    found = distill.kl(student, teacher, temperature)
    found.backward()

    right = float(kl_div(student.detach(), teacher, temperature))
    assert float(found.detach()) == pytest.approx(right, rel=1e-5)
    assert torch.allclose(student.grad.double(), wanted.grad, atol=1e-6)


def test_both_may_mask_a_class():
    student, teacher = logits(9, 7), masked(logits(9, 7), 0.6)
    mask = torch.isneginf(teacher) & (torch.from_numpy(LOGITS.random((9, 7))) < 0.5)
    student = student.masked_fill(mask, -torch.inf).requires_grad_()
    kept = [torch.isfinite(row) for row in student.detach()]
    both = zip(student.detach(), teacher, kept, strict=True)
    rows = [kl_div(s[k][None], t[k][None]) for s, t, k in both]

    found = distill.kl(student, teacher)
    found.backward()

    assert float(found.detach()) == pytest.approx(float(sum(rows)) / 9, rel=1e-5)
    assert torch.isfinite(student.grad).all()


def test_the_mixes_are_right_where_the_teacher_masks_a_class():
    student, teacher, labels = logits(6, 4), masked(logits(6, 4)), torch.tensor([0, 1, 2, 3, 0, 1])
    hard = nn.functional.cross_entropy(student.double(), labels)
    wanted = 0.3 * kl_div(student, teacher, 2.0) + 0.7 * hard

    for mix in (distill.hinton, distill.few_labels):
        found = mix(student, labels, teacher, temperature=2.0, alpha=0.3)
        assert float(found) == pytest.approx(float(wanted), rel=1e-5)
    both = distill.mixture([teacher, masked(logits(6, 4))], [1, 1], 2.0)
    assert torch.isfinite(distill.kl(student, both, 2.0))


@pytest.mark.parametrize("tail", [True, False])
def test_top_k_of_fewer_classes_than_k_is_right(tail):
    """The others have no probability. Broken once: 0 * -inf is NaN."""
    student, teacher = logits(8, 10).requires_grad_(), logits(8, 10)
    teacher[:, 3:] = -torch.inf
    told = distill.top_k(teacher, 6)

    found = distill.top_k_kl(student, told, tail=tail)
    found.backward()

    assert float(found.detach()) == pytest.approx(
        float(kl_div(student.detach(), teacher)), rel=5e-3
    )
    assert torch.isfinite(student.grad).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_teachers_large_logits_fit_a_student_of_half_the_width(dtype):
    """Broken once: they become the student's kind first, in which 70,000 is infinite."""
    student, teacher = logits(4, 6).to(dtype), 7e4 + logits(4, 6)
    wanted = float(kl_div(student, teacher))

    assert float(distill.kl(student, teacher)) == pytest.approx(wanted, rel=0.05)
