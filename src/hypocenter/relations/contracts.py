"""What each loss function is made for, by its definition: log-probabilities, scores, distributions.

A loss function computes something whatever it is given. Of probabilities where scores belong, of scores where their
logarithms belong, or of what was normalised over another dimension, the loss still falls, but not towards what is
wanted: it has another lower bound, or none. The definitions are those of torch.nn.functional.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hypocenter.relations.called import LossCall
from hypocenter.relations.scores import (
    ROUNDINGS,
    TOLERANCE,
    Wrong,
    are_probabilities,
    classes,
    given_to_cross_entropy,
    given_to_nll_loss,
    positive,
)

_SAME_VALUES = frozenset({  # nodes of autograd's graph that change no number
    "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "SqueezeBackward0", "SqueezeBackward1",
    "UnsqueezeBackward0", "TransposeBackward0", "PermuteBackward0", "ToCopyBackward0", "CloneBackward0",
    "SliceBackward0", "SelectBackward0", "AliasBackward0", "ExpandBackward0", "TBackward0", "IndexBackward0",
})  # fmt: skip
_WEIGHED = ("Mul", "Div", "Neg", "Sub")  # what a program does to log-probabilities that it weighs


def broken(call: LossCall) -> Wrong | None:
    """Return what this call was given that its function is not made for; None: nothing, or it cannot be told."""
    scores = call.input
    if not scores.is_floating_point() or scores.numel() < 2 or not bool(torch.isfinite(scores).any()):
        return None
    with torch.no_grad():
        return _CONTRACTS[call.name](call, scores)


def _cross_entropy(_: LossCall, scores: Tensor) -> Wrong | None:
    return given_to_cross_entropy(scores.float(), _tolerance(scores))


def _nll_loss(_: LossCall, scores: Tensor) -> Wrong | None:
    dim, title = classes(scores), "nll_loss is given no log-probabilities"
    wrong = given_to_nll_loss(scores.float(), _tolerance(scores))
    if wrong is not None:
        return wrong
    if _origin(scores).startswith(_WEIGHED) or _is_normalised(scores, dim):
        return None
    other = next((d for d in range(scores.dim()) if d != dim and _is_normalised(scores, d)), None)
    if other is not None:
        return Wrong(
            title=title, why=f"they are normalised over dimension {other}, which is not that of classes ({dim})",
            remedy=f"take log_softmax over dimension {dim}",
        )  # fmt: skip
    return positive(title, scores, _tolerance(scores))


def _kl_div(call: LossCall, scores: Tensor) -> Wrong | None:
    title, target = "kl_div is given no log-probabilities", call.target
    if _origin(scores).startswith(_WEIGHED):
        return None
    wrong = positive(title, scores, _tolerance(scores))
    if wrong is not None:
        return wrong
    if call.has_log_target and are_probabilities(target.float(), -1, _tolerance(target)):
        why, remedy = "log_target is set, and the target holds probabilities", "leave log_target out"
    elif not call.has_log_target and bool((target < 0).all()):
        why, remedy = "the target holds logarithms, and log_target is not set", "set log_target=True"
    else:
        return None
    return Wrong(title="kl_div is given another kind of target", why=why, remedy=remedy)


def _ctc_loss(call: LossCall, scores: Tensor) -> Wrong | None:
    n = _n_blank(call)
    if n:
        return Wrong(
            title="a class of ctc_loss stands for a label and for the blank",
            why=f"{n} labels are {call.blank}, which is the class of the blank: between labels it is skipped, so that "
            "this one cannot be told from nothing",
            remedy="add 1 to the labels, and a class to the model, or set `blank`",
        )  # fmt: skip
    return positive("ctc_loss is given no log-probabilities", scores, _tolerance(scores))


def _n_blank(call: LossCall) -> int:
    """Count the labels, up to the length of each target, that have the number of the blank class; 0 if unknown."""
    lengths, target = call.lengths, call.target
    if not isinstance(call.blank, int) or lengths is None or target.dim() not in (1, 2):
        return 0
    is_blank = target == call.blank
    if target.dim() == 2:
        places = torch.arange(target.shape[1], device=target.device)
        is_blank = is_blank & (places < torch.as_tensor(lengths, device=target.device).reshape(-1, 1))
    return int(is_blank.sum())


def _with_logits(_: LossCall, scores: Tensor) -> Wrong | None:
    kind = next((each for each in ("Sigmoid", "Softmax") if _origin(scores).startswith(each)), None)
    if kind is None:
        return None
    return Wrong(
        title="binary_cross_entropy_with_logits is given probabilities",
        why=f"a {kind.lower()} was taken already: the loss takes another, so that it only sees values from 0.5 to 0.73",
        remedy=f"give it the scores before the {kind.lower()}",
    )


_CONTRACTS: Mapping[str, Callable[[LossCall, Tensor], Wrong | None]] = {
    "cross_entropy": _cross_entropy, "nll_loss": _nll_loss, "kl_div": _kl_div, "ctc_loss": _ctc_loss,
    "binary_cross_entropy_with_logits": _with_logits,
}  # fmt: skip


def _tolerance(values: Tensor) -> float:
    return max(TOLERANCE, ROUNDINGS * torch.finfo(values.dtype).eps)


def _is_normalised(values: Tensor, dim: int) -> bool:
    """Return whether the exponentials of each row sum to 1."""
    wide = values.float()
    return bool((wide.logsumexp(dim).abs() <= _tolerance(values) + TOLERANCE * math.log(values.shape[dim] + 1)).all())


def _origin(values: Tensor) -> str:
    """Return the name of the node in autograd's graph that made these numbers, past views and casts; "": none."""
    node = values.grad_fn
    while node is not None and node.name() in _SAME_VALUES and node.next_functions:
        node = node.next_functions[0][0]
    return "" if node is None else node.name()
