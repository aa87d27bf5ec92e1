"""A SiteCard of a tensor: name and shape at once; norm, largest magnitude and sketch by reading it part by part."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from hypocenter.compare.comparison import SiteCard, Spot
from hypocenter.compare.weights import elements
from hypocenter.compare.weights.checkpoint import Checkpoint
from hypocenter.compare.weights.tensor import Planned, Tensor, boxes
from hypocenter.summary import sketch

_CONV1D = re.compile(
    r"(^|\.)(h\.\d+\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)"
    r"|blocks\.\d+\.(attention\.projection|output\.mapping|output\.projection))\.weight$"
)
_MINDFORMERS_FIRST = re.compile(r"(^|\.)blocks\.\d+\.output\.mapping\.weight$")
_FUSED_FIRST = re.compile(r"(^|\.)h\.\d+\.attn\.c_attn\.weight$")


def cards_of(checkpoint: Checkpoint) -> list[SiteCard]:
    """A card of every tensor, from names and shapes alone."""
    turned = _is_turned(checkpoint.tensors)
    return [
        SiteCard(
            spot=Spot(phase="param", site=name, port="value"), order=order, dtype=tensor.dtype, shape=tensor.shape,
            n=tensor.n, module="Conv1D" if turned and _CONV1D.search(name) else "",
        )
        for order, (name, tensor) in enumerate(checkpoint.tensors.items())
    ]  # fmt: skip


def measured(card: SiteCard, tensor: Tensor) -> SiteCard:
    """The card with what values tell."""
    if not elements.is_floating(tensor.dtype) or isinstance(tensor, Planned):
        return card
    total, sumsq, absmax = np.zeros(sketch.K * sketch.K), 0.0, 0.0
    for box in boxes(tensor.shape):
        part = elements.values(tensor.read(box), tensor.dtype)
        finite = np.where(np.isfinite(part), part, 0.0)
        absmax = max(absmax, float(np.abs(finite).max(initial=0.0)))
        sumsq += float(np.square(finite).sum())
        place = sketch.Placement(shape=tensor.shape, offset=tuple(start for start, _ in box))
        with np.errstate(over="ignore"):
            total += sketch.sketch(finite.astype(np.float32), place if tensor.shape else None)
    return replace(card, sumsq=sumsq, absmax=absmax, sketch=tuple(total.tolist()))


def _is_turned(tensors: dict[str, Tensor]) -> bool:
    """Whether GPT-2's matrices are kept (in, out), as transformers' Conv1D and MindFormers do and nanoGPT does not."""
    for name, tensor in tensors.items():
        if _FUSED_FIRST.search(name) and len(tensor.shape) == 2:
            return tensor.shape[1] == 3 * tensor.shape[0]
        if _MINDFORMERS_FIRST.search(name) and len(tensor.shape) == 2:
            return tensor.shape[1] > tensor.shape[0]  # to the width of the MLP
    return False
