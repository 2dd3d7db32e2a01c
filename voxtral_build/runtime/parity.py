"""How close a method's outputs are to the eager model's, and how close they have to be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Largest difference of a method that computes in float32, relative to its largest output:
# sums in another order.
MAX_RELATIVE_DIFFERENCE = 1e-5


@dataclass(frozen=True)
class NoiseGate:
    """How a method that rounds its activations may differ from eager, which does, too.

    Dynamic quantization rounds activations to 256 steps, and bf16 rounds everything to 8
    bits. A difference in the last bit of a float moves a value to the next step now and
    then; the layers after it then round other values, so that with depth the artifact's
    rounding becomes another draw of the same noise. The noise is what rounding costs: eager
    against the same weights with float32 activations (root mean square).

    Attributes:
        noise: how much of it the artifact must make, in units of eager's.
        draw: how far from eager it may be, in the same units: no further than two
            independent draws are.
    """

    noise: tuple[float, float]
    draw: float


QUANTIZED_GATE = NoiseGate(noise=(0.9, 1.1), draw=math.sqrt(2))
# Kernels may round twice where eager rounds once: a linear, and then its bias.
BF16_GATE = NoiseGate(noise=(0.9, math.sqrt(2)), draw=math.sqrt(3))


@dataclass(frozen=True)
class Parity:
    """One method's outputs against eager's on the same inputs.

    Attributes:
        max_abs_difference: over all values.
        max_abs_output: eager's largest, to read the former by.
        cosine: of the two outputs as vectors.
        top1_agreement: share of positions with the same most likely token; logits only.
        noise_ratio, draw_ratio: the artifact's distance from the same weights with float32
            activations, and from eager, over eager's from the former; where activations are
            rounded only.
    """

    max_abs_difference: float
    max_abs_output: float
    cosine: float
    top1_agreement: float | None
    noise_ratio: float | None
    draw_ratio: float | None

    @classmethod
    def of(cls, got: Tensor, eager: Tensor, unrounded: Tensor | None, logits: bool) -> Parity:
        """Compare; `unrounded` has the same weights and float32 activations."""
        got, eager = got.float(), eager.float()
        noise_ratio = draw_ratio = None
        if unrounded is not None:
            noise = (eager - unrounded).norm()
            noise_ratio = float((got - unrounded).norm() / noise)
            draw_ratio = float((got - eager).norm() / noise)
        return cls(
            max_abs_difference=float((got - eager).abs().max()),
            max_abs_output=float(eager.abs().max()),
            cosine=cosine(got, eager),
            top1_agreement=float((got.argmax(-1) == eager.argmax(-1)).float().mean())
            if logits
            else None,
            noise_ratio=noise_ratio,
            draw_ratio=draw_ratio,
        )

    def failures(self, name: str, gate: NoiseGate) -> list[str]:
        """The gates that this method does not pass, each with its figure and bound."""
        if self.noise_ratio is not None and self.draw_ratio is not None:
            low, high = gate.noise
            failures = []
            # NaN compares false, and so fails.
            if not low <= self.noise_ratio <= high:
                bounds = f"{low:.3g} to {high:.3g}"
                failures.append(f"{name}: noise_ratio {self.noise_ratio:.3g}, {bounds}")
            if not self.draw_ratio <= gate.draw:
                failures.append(
                    f"{name}: draw_ratio {self.draw_ratio:.3g}, at most {gate.draw:.3g}"
                )
            return failures
        relative = self.max_abs_difference / max(self.max_abs_output, 1.0)
        if relative <= MAX_RELATIVE_DIFFERENCE:
            return []
        figures = f"{self.max_abs_difference:.3g} at outputs up to {self.max_abs_output:.3g}"
        return [f"{name}: max_abs_difference {figures}, at most {MAX_RELATIVE_DIFFERENCE} of them"]


def cosine(first: Tensor, second: Tensor) -> float:
    """Cosine of the angle between two tensors of one shape, taken as vectors."""
    a, b = first.float().flatten(), second.float().flatten()
    return float(torch.cosine_similarity(a, b, dim=0))
