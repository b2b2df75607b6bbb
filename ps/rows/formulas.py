"""What optimizers compute, compiled by numba: by element, and for a row as a whole.

A formula takes weight, up to three states (zeros where it has none) and the gradient, eight
elements at once (kernels/lanes.py), and what it is told of the step: the Coefficients of step.py,
which runs it over rows and chunks. It returns weight and states.

An optimizer that looks at a row as a whole (`WHOLE`) has two such passes: the first renews the
states and adds two sums over the row up, the second makes the weights, with a number that was made
of the sums. Which rule has which formula and which constants, optimizers.py says.
"""

from __future__ import annotations

import math

import numpy as np

from ...kernels.compile import inlined, load_float, store_float
from ...kernels.lanes import choose, lanes, root

SGD, MOMENTUM, NESTEROV, ADAGRAD, ADAM, AMSGRAD, FTRL = range(7)
RMSPROP, RMSPROP_MOMENTUM, RMSPROP_CENTERED, RMSPROP_BOTH, ADADELTA, ADAMAX = range(7, 13)
NADAM, RADAM, LION, ROW_WISE_ADAGRAD, LAMB, GROUP_ADAM, ADAGRAD_DECAY = range(13, 20)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@inlined
def _sgd(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, decay = told.constants[:2]
    return w - rate * (g + decay * w), a, b, c


@inlined
def _momentum(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, decay = told.constants[:2]
    m = told.x * a + told.y * (g + decay * w)
    return w - rate * m, m, b, c


@inlined
def _nesterov(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, decay, keep = told.constants[:3]
    d = g + decay * w
    m = told.x * a + told.y * d
    return w - rate * (d + keep * m), m, b, c


@inlined
def _adagrad(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, decay, eps = told.constants[:3]
    d = g + decay * w
    total = a + d * d
    return w - rate * (d / (root(total) + eps)), total, b, c


@inlined
def _adagrad_decay(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    """As a formula of its own: the division of a rate costs a row of 16 a third more time."""
    rate, decay, eps, slower = told.constants[:4]
    d = g + decay * w
    total = a + d * d
    return w - rate / (_ONE + told.steps * slower) * (d / (root(total) + eps)), total, b, c


@inlined
def _adam(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, coupled, shrink, take1, keep2, take2, eps = told.constants
    w = w * shrink
    d = g + coupled * w
    m = a + take1 * (d - a)
    v = keep2 * b + take2 * d * d
    return w - rate * told.x * (m / (root(v) / told.y + eps)), m, v, c


@inlined
def _amsgrad(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, coupled, shrink, take1, keep2, take2, eps = told.constants
    w = w * shrink
    d = g + coupled * w
    m = a + take1 * (d - a)
    v = keep2 * b + take2 * d * d
    most = choose(v, c, c, v)
    return w - rate * told.x * (m / (root(most) / told.y + eps)), m, v, most


@inlined
def _nadam(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, coupled, shrink, take1, keep2, take2, eps = told.constants
    w = w * shrink
    d = g + coupled * w
    m = a + take1 * (d - a)
    v = keep2 * b + take2 * d * d
    return w - rate * (told.x * d + told.z * m) / (root(v) / told.y + eps), m, v, c


@inlined
def _radam(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    """With told.y = 0 the variance is not known yet, and the step is not divided by it."""
    rate, coupled, shrink, take1, keep2, take2, eps = told.constants
    w = w * shrink
    d = g + coupled * w
    m = a + take1 * (d - a)
    v = keep2 * b + take2 * d * d
    by = choose(told.y, _ZERO, _ONE, told.y / (root(v) + eps))
    return w - rate * told.x * m * by, m, v, c


@inlined
def _adamax(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, decay, take1, keep2, eps = told.constants[:5]
    d = g + decay * w
    m = a + take1 * (d - a)
    most = _greater(keep2 * b, _magnitude(d) + eps)
    return w - rate * told.x * m / most, m, most, c


@inlined
def _adadelta(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, decay, keep, take, eps = told.constants[:5]
    d = g + decay * w
    v = keep * a + take * d * d
    delta = root(b + eps) / root(v + eps) * d
    return w - rate * delta, v, keep * b + take * delta * delta, c


@inlined
def _rmsprop(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, decay, keep, take, eps = told.constants[:5]
    d = g + decay * w
    v = keep * a + take * d * d
    return w - rate * (d / (root(v) + eps)), v, b, c


@inlined
def _rmsprop_momentum(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, decay, keep, take, eps, push = told.constants[:6]
    d = g + decay * w
    v = keep * a + take * d * d
    m = push * b + d / (root(v) + eps)
    return w - rate * m, v, m, c


@inlined
def _rmsprop_centered(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, decay, keep, take, eps = told.constants[:5]
    d = g + decay * w
    v, mean = keep * a + take * d * d, b + take * (d - b)
    return w - rate * (d / (root(_greater(v - mean * mean, _ZERO)) + eps)), v, mean, c


@inlined
def _rmsprop_both(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, decay, keep, take, eps, push = told.constants[:6]
    d = g + decay * w
    v, mean = keep * a + take * d * d, b + take * (d - b)
    m = push * c + d / (root(_greater(v - mean * mean, _ZERO)) + eps)
    return w - rate * m, v, mean, m


@inlined
def _lion(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, shrink, keep1, take1, keep2, take2 = told.constants[:6]
    m = keep1 * a + take1 * g
    sign = choose(m, _ZERO, _ZERO, _ONE) - choose(_ZERO, m, _ZERO, _ONE)
    return w * shrink - rate * sign, keep2 * a + take2 * g, b, c


@inlined
def _ftrl(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, base, sparse, ridge, shrink = told.constants[:5]
    total = b + g * g
    z = a + (g + shrink * w - (root(total) - root(b)) / rate * w)
    scale = (base + root(total)) / rate + ridge
    dense = _shrunk(z, sparse) / scale
    return choose(scale, _ZERO, _ZERO, dense), z, total, c


@inlined
def _magnitude(x):  # type: ignore[no-untyped-def]
    return choose(x, _ZERO, _ZERO - x, x)


@inlined
def _greater(x, y):  # type: ignore[no-untyped-def]
    return choose(x, y, y, x)


@inlined
def _shrunk(z, sparse):  # type: ignore[no-untyped-def]
    """Return -z, nearer to zero by `sparse`; 0 where that is not less than |z|."""
    nearer = choose(z, _ZERO, _ZERO - sparse, sparse) - z
    return choose(_magnitude(z), sparse, _ZERO, nearer)


# -- Those that look at a row as a whole. The first part returns what the second one gets, and two
# Lanes whose sums over the row (float64) `between` makes a float32 of, for the second part.


@inlined
def _row_wise_adagrad(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    d = g + told.constants[1] * w
    return a, b, c, d * d, lanes(_ZERO)


@inlined
def _row_wise_adagrad_rate(squares, _other, n, row, told):  # type: ignore[no-untyped-def]
    """Return the row's rate; its state is one number."""
    rate, _, eps, slower = told.constants[:4]
    state = np.float32(np.float64(load_float(row.a)) + squares / n)
    store_float(row.a, state)
    return rate / (_ONE + told.steps * slower) / (np.float32(math.sqrt(state)) + eps)


@inlined
def _row_wise_adagrad_weight(w, _a, _b, _c, g, told, rate):  # type: ignore[no-untyped-def]
    return w - rate * (g + told.constants[1] * w)


@inlined
def _lamb_update(w, m, v, told):  # type: ignore[no-untyped-def]
    _, decay, _, _, _, eps = told.constants[:6]
    over = root(v) / told.y + eps
    return choose(over, _ZERO, _ZERO, told.x * m / over) + decay * w


@inlined
def _lamb(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    _, _, take1, keep2, take2, _ = told.constants[:6]
    m = a + take1 * (g - a)
    v = keep2 * b + take2 * g * g
    update = _lamb_update(w, m, v, told)
    return m, v, c, w * w, update * update


@inlined
def _lamb_rate(weights, updates, _n, _row, told):  # type: ignore[no-untyped-def]
    trust = math.sqrt(weights / updates) if weights > 0.0 and updates > 0.0 else 1.0
    return told.constants[0] * np.float32(trust)


@inlined
def _lamb_weight(w, a, b, _c, _g, told, rate):  # type: ignore[no-untyped-def]
    return w - rate * _lamb_update(w, a, b, told)


@inlined
def _group_adam(w, a, b, c, g, told):  # type: ignore[no-untyped-def]
    rate, take1, keep2, take2, eps, sparse, _ = told.constants
    m = a + take1 * (g - a)
    v = keep2 * b + take2 * g * g
    first = eps if told.steps == _ZERO else _ZERO  # told.z is 0 then
    z = c + rate * told.x * m - (root(v) / told.y - root(b) * told.z + first) * w
    nearer = _shrunk(z, rate * sparse)
    return m, v, z, nearer * nearer, lanes(_ZERO)


@inlined
def _group_adam_scale(squares, _other, n, _row, told):  # type: ignore[no-untyped-def]
    """Return what is left of the row: 0 where the whole of it is too near to zero."""
    least = np.float64(told.constants[0]) * told.constants[6] * math.sqrt(n)
    return np.float32(1.0 - least / math.sqrt(squares)) if squares > least * least else _ZERO


@inlined
def _group_adam_weight(_w, _a, b, c, _g, told, scale):  # type: ignore[no-untyped-def]
    rate, _, _, _, eps, sparse, _ = told.constants
    over = root(b) / told.y + eps
    return choose(over, _ZERO, _ZERO, scale * _shrunk(c, rate * sparse) / over)


FORMULAS = {  # by kind: the formula, and how many states it has
    SGD: (_sgd, 0),
    MOMENTUM: (_momentum, 1),
    NESTEROV: (_nesterov, 1),
    ADAGRAD: (_adagrad, 1),
    ADAGRAD_DECAY: (_adagrad_decay, 1),
    ADAM: (_adam, 2),
    AMSGRAD: (_amsgrad, 3),
    FTRL: (_ftrl, 2),
    RMSPROP: (_rmsprop, 1),
    RMSPROP_MOMENTUM: (_rmsprop_momentum, 2),
    RMSPROP_CENTERED: (_rmsprop_centered, 2),
    RMSPROP_BOTH: (_rmsprop_both, 3),
    ADADELTA: (_adadelta, 2),
    ADAMAX: (_adamax, 2),
    NADAM: (_nadam, 2),
    RADAM: (_radam, 2),
    LION: (_lion, 1),
}
WHOLE = {  # those of two passes: the first, what is between, the second; states of elements
    ROW_WISE_ADAGRAD: (_row_wise_adagrad, _row_wise_adagrad_rate, _row_wise_adagrad_weight, 0),
    LAMB: (_lamb, _lamb_rate, _lamb_weight, 2),
    GROUP_ADAM: (_group_adam, _group_adam_scale, _group_adam_weight, 3),
}
