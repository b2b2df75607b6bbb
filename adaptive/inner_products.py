"""Inner products of gradients, as they are or in the space in which Adam steps.

They are dot products of small parts, added up in float64, and replicas that hold the same gradients
can compute a share each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_PART = 2**18  # elements of a dot product: float32 sums of more lose digits, temporaries the cache
_LANES = 64  # elements at once
WARM = 5  # steps of Adam before its second moments are taken for a preconditioner


def adam_product(
    state: Mapping[str, Tensor],
    group: Mapping[str, Any],
    one: Tensor,
    two: Tensor,
    share: tuple[int, int] = (0, 1),
) -> list[Tensor]:
    """Return `inner_product` of a parameter's two gradients in the space in which Adam steps.

    `state` and `group` are the parameter's, of torch's Adam or AdamW; without moments yet, or too
    early ones, the product is that of the gradients as they are.
    """
    if not state or (steps := float(state["step"])) < WARM:
        return inner_product(one, two, share=share)
    moments = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    unbiased = 1 - float(group["betas"][1]) ** steps
    # Divided by sqrt(unbiased) x (sqrt(v_hat) + eps), for a pass less.
    precondition = Precondition(_flat(moments), group["eps"] * unbiased**0.5)
    return [p * unbiased for p in inner_product(one, two, precondition, share)]


@dataclass(frozen=True)
class Precondition:
    """A division by sqrt(moments) + eps, element by element; `moments` are flat."""

    moments: Tensor
    eps: float


def inner_product(
    one: Tensor,
    two: Tensor,
    by: Precondition | None = None,
    share: tuple[int, int] = (0, 1),
) -> list[Tensor]:
    """Return scalars that add up to the inner product of two tensors of one shape.

    Each tensor is divided before, where `by` is given.

    `share`: only the k-th of so many equal parts.
    """
    first = _flat(one)
    second = first if two is one else _flat(two)
    (at, of), size = share, first.numel()
    begin, end = size * at // of, size * (at + 1) // of
    if by is not None and _is_plain(first) and _is_plain(by.moments):
        part = slice(begin, end)
        arrays = (flat[part].detach().numpy() for flat in (first, second, by.moments))
        return [torch.tensor(_kernel()(*arrays, by.eps), dtype=torch.float64)]
    products = []
    for start in range(begin, end, _PART):
        part = slice(start, min(start + _PART, end))
        quotients = [flat[part] for flat in ((first,) if second is first else (first, second))]
        if by is not None:
            divisor = by.moments[part].sqrt().add_(by.eps)
            quotients = [quotient / divisor for quotient in quotients]
        products.append(torch.dot(quotients[0], quotients[-1]))
    return products


def _is_plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


@functools.cache
def _kernel() -> Callable[..., float]:
    from ..kernels.compile import DOUBLE, FLOATS_1D, compiled

    return compiled(_quotients, FLOATS_1D, FLOATS_1D, FLOATS_1D, DOUBLE)


def _quotients(one, two, moments, eps):  # type: ignore[no-untyped-def]  # compiled by numba
    """Return the inner product of quotients in one pass, where torch needs four: half of the time.

    Added up in lanes, and these in float64: only so may a compiler take several elements at once.
    """
    lanes, least = np.zeros(_LANES), np.float32(eps)
    whole = one.size - one.size % _LANES
    for start in range(0, whole, _LANES):
        for lane in range(_LANES):
            at = start + lane
            factor = np.float32(1) / (np.sqrt(moments[at]) + least)
            lanes[lane] += np.float64((one[at] * factor) * (two[at] * factor))
    for at in range(whole, one.size):
        factor = np.float32(1) / (np.sqrt(moments[at]) + least)
        lanes[0] += np.float64((one[at] * factor) * (two[at] * factor))
    return lanes.sum()


def _flat(tensor: Tensor) -> Tensor:
    flat = (tensor.to_dense() if tensor.is_sparse else tensor).reshape(-1)
    return flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat
