"""How close two outputs are.

Dynamic quantization rounds activations to 256 steps, and bf16 rounds everything to 8 bits. A
difference in the last bit of a float moves a value to the next step now and then; the layers
after it then round other values, so that with depth an artifact's rounding becomes another
draw of the same noise. The noise is what rounding costs: eager against the same weights with
float32 activations (root mean square). How much of it an artifact makes, and how far from
eager it is, are in units of eager's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from voxtral_build.report import Parity


def parity(got: Tensor, eager: Tensor, unrounded: Tensor | None, *, logits: bool) -> Parity:
    """Compare a method's outputs with eager's.

    Args:
        got, eager: (1, T, N), of the same inputs.
        unrounded: of the same weights with float32 activations; None where eager itself
            rounds none.
        logits: whether N counts tokens.
    """
    got, eager = got.float(), eager.float()
    noise_ratio = draw_ratio = None
    if unrounded is not None:
        noise = (eager - unrounded).norm()
        noise_ratio = float((got - unrounded).norm() / noise)
        draw_ratio = float((got - eager).norm() / noise)
    return Parity(
        max_abs_difference=float((got - eager).abs().max()),
        max_abs_output=float(eager.abs().max()),
        cosine=cosine(got, eager),
        top1_agreement=float((got.argmax(-1) == eager.argmax(-1)).float().mean())
        if logits
        else None,
        divergence=divergence(eager, got) if logits else None,
        noise_ratio=noise_ratio,
        draw_ratio=draw_ratio,
    )


def relative_difference(compared: Parity) -> float:
    """The largest difference, over the largest output where that is more than 1."""
    return compared.max_abs_difference / max(compared.max_abs_output, 1.0)


def cosine(first: Tensor, second: Tensor) -> float:
    """Cosine of the angle between two tensors of one shape, taken as vectors."""
    # In float64: the square root of float32's rounding is 3e-4, of an angle that may be less.
    a, b = first.double().flatten(), second.double().flatten()
    return float(torch.cosine_similarity(a, b, dim=0))


def divergence(ours: Tensor, theirs: Tensor) -> float:
    """Mean Kullback-Leibler divergence of `theirs` from `ours`, logits (1, T, N), in nats."""
    p, q = ours.double().log_softmax(-1), theirs.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())
