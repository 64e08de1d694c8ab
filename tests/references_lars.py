"""NumPy oracles of LARS and of the warm-up, written from the papers' formulas, in float64."""

import numpy as np


def trust_ratio(w, g, weight_decay=0.0, trust_coefficient=1e-3, epsilon=0.0, trust_clip=None):
    w_norm, g_norm = np.sqrt(np.sum(w * w)), np.sqrt(np.sum(g * g))
    ratio = 1.0
    if w_norm > 0 and g_norm > 0:
        ratio = trust_coefficient * w_norm / (g_norm + weight_decay * w_norm + epsilon)
    if trust_clip is not None:
        ratio = min(max(ratio, trust_clip[0]), trust_clip[1])
    return ratio


def lars_step(
    w,
    v,
    g,
    lr,
    momentum=0.9,
    weight_decay=1e-4,
    trust_coefficient=1e-3,
    nesterov=False,
    epsilon=0.0,
    trust_clip=None,
    momentum_form="unscaled",
    adapted=True,
):
    """Returns the next `(w, v)`."""
    w, v, g = (np.asarray(array, np.float64) for array in (w, v, g))
    ratio = 1.0
    if adapted:
        ratio = trust_ratio(w, g, weight_decay, trust_coefficient, epsilon, trust_clip)
    d = ratio * (g + weight_decay * w)
    if momentum_form == "unscaled":
        v = momentum * v + lr * d
        return w - (momentum * v + lr * d if nesterov else v), v
    v = momentum * v + d
    return w - lr * (momentum * v + d if nesterov else v), v


def lars_run(w, gradients, rates, **kwargs):
    """Returns the weights after each step, from zero momentum."""
    v, trajectory = np.zeros_like(w), []
    for g, lr in zip(gradients, rates, strict=True):
        w, v = lars_step(w, v, g, lr, **kwargs)
        trajectory.append(w)
    return np.stack(trajectory)


def linear_warmup(step, warmup_steps, decay, initial=0.0, decay_start="after_warmup"):
    """`decay` is a function of a step number."""
    offset = warmup_steps if decay_start == "after_warmup" else 0
    if step >= warmup_steps:
        return decay(step - offset)
    return initial + (decay(warmup_steps - offset) - initial) * step / warmup_steps
