"""Clamp what modules return to the format's range. A band-aid: it hides the overflow and cuts gradients there."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import nn

from hypocenter.diagnose.evidence import Evidence
from hypocenter.replay.remedies.kinds import RemedyKind
from hypocenter.tap.tree import replace_tensors

MARGIN = 1000.0  # below the maximum, as the T5 of Transformers leaves for the residual sum that follows


def applies(evidence: Evidence | None) -> bool:
    """Return whether it may help: to infinities that a forward made in float16; a NaN cannot be clamped."""
    if evidence is None or evidence.origin is None:
        return True
    outputs = evidence.origin.outputs
    return evidence.origin.phase == "forward" and any(
        t.dtype == "float16" and t.summary.n_posinf + t.summary.n_neginf > 0 and t.summary.n_nan == 0 for t in outputs
    )


@contextlib.contextmanager
def around(modules: Sequence[nn.Module]) -> Generator[None, None, None]:
    """Clamp float16 results of the modules, and of all below them, to finite values within this block; NaN stays."""

    def clamped(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype != torch.float16:
            return tensor
        limit = torch.finfo(tensor.dtype).max - MARGIN
        return tensor.clamp(-limit, limit)

    def hook(module: nn.Module, args: Any, result: Any) -> Any:
        return replace_tensors(result, clamped)

    inside = {id(m): m for module in modules for m in module.modules()}
    handles = [module.register_forward_hook(hook) for module in inside.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def text(targets: Sequence[str]) -> str:
    """Say the change in words, with what is wrong with it."""
    where = ", ".join(target or "the model" for target in targets)
    return (
        f"clamp the output of {where} to ±(65504 - {MARGIN:g}): a band-aid, the values are wrong there and their "
        "gradients become 0; take it only where nothing else can be changed"
    )


KIND = RemedyKind(name="clamp", order=9, applies=applies, around=around, text=text)
