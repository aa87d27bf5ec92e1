"""This rank's share of gradients that the ranks add up, as the replay computed it before any communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from hypocenter.diagnose.evidence import Share

AT_MOST = 8  # parameters whose share is noted, those with the largest values
N_ELEMENTS = 16  # of each, at most: the first at which the gradient in the run is not finite


def shares(sums: Mapping[str, torch.Tensor], named: Sequence[tuple[str, torch.Tensor]]) -> tuple[Share, ...]:
    """What this rank had to add where the gradients of the run are not finite.

    Args:
        sums: float64 gradients of the step on this rank, over its micro-batches, by parameter.
        named: the parameters; their `.grad` is what the ranks' sum came to.
    """
    found: list[Share] = []
    for name, parameter in named:
        own, grad = sums.get(name), run_gradient(parameter)
        if own is None or grad is parameter or grad.layout != torch.strided or own.shape != grad.shape:
            continue
        bad = (~torch.isfinite(grad)).flatten().nonzero().flatten()
        at = bad[:N_ELEMENTS]
        found.append(
            Share(
                param=name,
                dtype=str(grad.dtype).removeprefix("torch."),
                limit=float(torch.finfo(grad.dtype).max),
                absmax=float(own.abs().max()),
                n=grad.numel(),
                n_nonfinite=int(bad.numel()),
                at=tuple(at.tolist()),
                values=tuple(own.flatten()[at].tolist()),
            )
        )
    return tuple(sorted(found, key=lambda share: -share.absmax)[:AT_MOST])


def run_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient that the run has accumulated: `.grad`, or Megatron-Core's `main_grad`; else the parameter itself."""
    grad = parameter.grad if parameter.grad is not None else getattr(parameter, "main_grad", None)
    return grad if isinstance(grad, torch.Tensor) else parameter


def fits(share: Share) -> bool:
    """Whether this rank's own sum over its micro-batches is within the format."""
    return share.absmax <= share.limit
