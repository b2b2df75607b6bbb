"""Losses of distillation: a student learns from what a teacher says of the same records.

A teacher's answers are logits, or log-probabilities at temperature 1 (`top_k`), so that they can be
kept and used at any temperature: the temperature is the student's. Of `student` and `teacher`
[..., classes] the last axis are classes; all losses are means over the others.

Papers: Hinton, Vinyals, Dean, "Distilling the Knowledge in a Neural Network" (arXiv 1503.02531);
Ba, Caruana, "Do Deep Nets Really Need to be Deep?" (arXiv 1312.6184); Romero et al., "FitNets"
(arXiv 1412.6550).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["few_labels", "hint", "hinton", "kl", "mixture", "mse", "top_k", "top_k_kl"]


def kl(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return T^2 KL(teacher || student) of the distributions at temperature T, a scalar.

    Of logits [..., classes]. The factor keeps the size of gradients independent of T (Hinton et
    al., section 2). A class that the teacher masks with -inf adds nothing. Raises ValueError where
    the shapes differ.
    """
    _alike(student, teacher)
    _positive(temperature)
    wide = teacher.to(torch.promote_types(teacher.dtype, student.dtype))
    wanted = functional.log_softmax(wide / temperature, dim=-1).to(student.dtype)
    given = functional.log_softmax(student / temperature, dim=-1)
    return _divergence(wanted, given) * temperature**2


def hinton(
    student: Tensor,
    labels: Tensor,
    teacher: Tensor | None,
    *,
    temperature: float = 2.0,
    alpha: float = 0.5,
) -> Tensor:
    """Return alpha `kl` + (1 - alpha) cross-entropy (Hinton et al., section 2), a scalar.

    `student`, `teacher`: logits [N, classes]; `labels`: int64[N]. Without a teacher's answer (None)
    it is the cross-entropy alone. Raises ValueError where alpha is outside [0, 1].
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is {alpha:g}, not between 0 and 1")
    hard = functional.cross_entropy(student, labels)
    return _mixed(hard, student, teacher, temperature, alpha)


def few_labels(
    student: Tensor,
    labels: Tensor,
    teacher: Tensor | None,
    *,
    temperature: float = 2.0,
    alpha: float = 0.5,
) -> Tensor:
    """Return `hinton`'s mix where few labels are known, a scalar: those below 0 are not.

    `student`, `teacher`: logits [N, classes]; `labels`: int64[N]. The cross-entropy is that of the
    known labels, over N; without a teacher's answer (None) it is all.
    """
    known = labels >= 0
    hard = functional.cross_entropy(student[known], labels[known], reduction="sum") / len(labels)
    return _mixed(hard, student, teacher, temperature, alpha)


def _mixed(
    hard: Tensor, student: Tensor, teacher: Tensor | None, temperature: float, alpha: float
) -> Tensor:
    """Mix a loss of labels with `kl`; without a teacher's answer it is the loss alone."""
    if teacher is None:
        return hard
    return alpha * kl(student, teacher, temperature) + (1.0 - alpha) * hard


def mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared difference of logits (Ba and Caruana, section 2.2), a scalar."""
    _alike(student, teacher)
    return functional.mse_loss(student, teacher.to(student.dtype))


def hint(student: Tensor, teacher: Tensor, regressor: nn.Module | None = None) -> Tensor:
    """Return half of the squared distance of hidden layers (FitNets, equation 3), a scalar.

    `student` [N, ...], through `regressor` where the teacher's layer has another shape, and
    `teacher` [N, ...]: summed over a record's values, the mean over N.
    """
    guess = student if regressor is None else regressor(student)
    _alike(guess, teacher)
    return (guess - teacher.to(guess.dtype)).square().flatten(1).sum(1).mean() / 2


def top_k(logits: Tensor, k: int) -> dict[str, Tensor]:
    """Return the k most likely classes: `log_probs` float16[..., k] and `classes` int32[..., k].

    What a teacher of a large vocabulary answers instead of all logits [..., classes].
    """
    if not 1 <= k <= logits.shape[-1]:
        raise ValueError(f"k is {k}, of {logits.shape[-1]} classes")
    values, classes = functional.log_softmax(logits.float(), dim=-1).topk(k, dim=-1)
    return {"log_probs": values.to(torch.float16), "classes": classes.to(torch.int32)}


def top_k_kl(student: Tensor, teacher: Mapping[str, Tensor], *, tail: bool = True) -> Tensor:
    """Return KL(teacher || student) over the classes of `top_k` and, with `tail`, one of the rest.

    `student`: logits [..., classes], at temperature 1: the rest has no other. Without the rest the
    loss rewards a student for giving it no probability, which the teacher never said.
    """
    wanted, classes = teacher["log_probs"].to(student.dtype), teacher["classes"].long()
    if wanted.shape != classes.shape or wanted.shape[:-1] != student.shape[:-1]:
        raise ValueError(
            f"the teacher's {tuple(wanted.shape)} and {tuple(classes.shape)} are not of the "
            f"student's {tuple(student.shape)}"
        )
    given = functional.log_softmax(student, dim=-1).gather(-1, classes)
    if tail:
        wanted = torch.cat([wanted, _rest(wanted)], dim=-1)
        given = torch.cat([given, _rest(given)], dim=-1)
    return _divergence(wanted, given)


def mixture(
    teachers: Sequence[Tensor], weights: Sequence[float], temperature: float = 1.0
) -> Tensor:
    """Return logits of the weighted mean of several teachers' distributions at the temperature.

    Of logits [..., classes] each; the weights are made to sum to 1. For `kl` at the same
    temperature: it divides by it once more.
    """
    _positive(temperature)
    if len(teachers) != len(weights) or not teachers or min(weights) < 0 or not sum(weights):
        raise ValueError(
            f"{len(teachers)} teachers have the weights {list(weights)}: one each, none below 0, "
            "not all 0"
        )
    total = float(sum(weights))
    mixed = sum(
        functional.softmax(each.float() / temperature, dim=-1) * (weight / total)
        for each, weight in zip(teachers, weights, strict=True)
    )
    assert isinstance(mixed, Tensor)
    return mixed.clamp_min(torch.finfo(mixed.dtype).tiny).log() * temperature


def _divergence(wanted: Tensor, given: Tensor) -> Tensor:
    """Return the mean over records of KL(wanted || given) of log-probabilities [..., classes].

    A class that the teacher gives no probability (-inf) adds nothing: p log p goes to 0 with p.
    """
    p = wanted.exp()
    return (p * (wanted - given).masked_fill(p == 0, 0.0)).sum(-1).mean()


def _rest(log_probs: Tensor) -> Tensor:
    """Return log(1 - sum of the probabilities) [..., 1], finite where nothing is left."""
    left = 1.0 - log_probs.exp().sum(-1, keepdim=True)
    return left.clamp_min(torch.finfo(left.dtype).eps).log()


def _alike(student: Tensor, teacher: Tensor) -> None:
    if student.shape != teacher.shape:
        raise ValueError(
            f"the student's {tuple(student.shape)} and the teacher's {tuple(teacher.shape)} are "
            "not alike"
        )


def _positive(temperature: float) -> None:
    if not temperature > 0:
        raise ValueError(f"the temperature is {temperature:g}, not above 0")
