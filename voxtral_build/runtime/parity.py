"""How close a method's outputs are to the eager model's, and how close they have to be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Largest difference of a method without activation quantization, relative to its largest
# output: float32 sums in another order.
MAX_RELATIVE_DIFFERENCE = 1e-5
# Dynamic quantization rounds activations to 256 steps. A difference in the last bit of a
# float moves a value to the next step now and then; the layers after it then round other
# values, so that with depth the artifact's rounding becomes another draw of the same noise.
# The noise is what quantizing the activations costs: eager against the same weights with
# float activations (root mean square). The artifact must make as much of it as eager does,
NOISE_RATIO = (0.9, 1.1)
# and be no further from eager than two independent draws are.
MAX_DRAW_RATIO = math.sqrt(2)


@dataclass(frozen=True)
class Parity:
    """One method's outputs against eager's on the same inputs.

    Attributes:
        max_abs_difference: over all values.
        max_abs_output: eager's largest, to read the former by.
        cosine: of the two outputs as vectors.
        top1_agreement: share of positions with the same most likely token; logits only.
        noise_ratio, draw_ratio: the artifact's distance from the model with float
            activations, and from eager, over eager's from the former; where activations
            are quantized only.
    """

    max_abs_difference: float
    max_abs_output: float
    cosine: float
    top1_agreement: float | None
    noise_ratio: float | None
    draw_ratio: float | None

    @classmethod
    def of(cls, got: Tensor, eager: Tensor, float_eager: Tensor | None, logits: bool) -> Parity:
        """Compare; `float_eager` has the same weights and unquantized activations."""
        got, eager = got.float(), eager.float()
        noise_ratio = draw_ratio = None
        if float_eager is not None:
            noise = (eager - float_eager.float()).norm()
            noise_ratio = float((got - float_eager.float()).norm() / noise)
            draw_ratio = float((got - eager).norm() / noise)
        return cls(
            max_abs_difference=float((got - eager).abs().max()),
            max_abs_output=float(eager.abs().max()),
            cosine=float(torch.cosine_similarity(got.flatten(), eager.flatten(), dim=0)),
            top1_agreement=float((got.argmax(-1) == eager.argmax(-1)).float().mean())
            if logits
            else None,
            noise_ratio=noise_ratio,
            draw_ratio=draw_ratio,
        )

    def failures(self, name: str) -> list[str]:
        """The gates that this method does not pass, each with its figure and bound."""
        if self.noise_ratio is not None and self.draw_ratio is not None:
            low, high = NOISE_RATIO
            failures = []
            if not low <= self.noise_ratio <= high:
                failures.append(f"{name}: noise_ratio {self.noise_ratio:.3g}, {low} to {high}")
            if not self.draw_ratio <= MAX_DRAW_RATIO:
                failures.append(
                    f"{name}: draw_ratio {self.draw_ratio:.3g}, at most {MAX_DRAW_RATIO:.3g}"
                )
            return failures
        relative = self.max_abs_difference / max(self.max_abs_output, 1.0)
        if relative <= MAX_RELATIVE_DIFFERENCE:  # NaN compares false, and so fails
            return []
        figures = f"{self.max_abs_difference:.3g} at outputs up to {self.max_abs_output:.3g}"
        return [f"{name}: max_abs_difference {figures}, at most {MAX_RELATIVE_DIFFERENCE} of them"]
