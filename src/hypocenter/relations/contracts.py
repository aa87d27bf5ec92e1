"""What each loss function is made for, by its definition: log-probabilities, scores, distributions.

A loss function computes something whatever it is given. Of probabilities where scores belong, of scores where their
logarithms belong, or of what was normalised over another dimension, the loss still falls, but not towards what is
wanted: it has another lower bound, or none. The definitions are those of torch.nn.functional.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hypocenter.relations.called import LossCall

_TOLERANCE, _ROUNDINGS = 1e-3, 8  # of sums of probabilities; or so many roundings of their format
_SAME_VALUES = frozenset({  # nodes of autograd's graph that change no number
    "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "SqueezeBackward0", "SqueezeBackward1",
    "UnsqueezeBackward0", "TransposeBackward0", "PermuteBackward0", "ToCopyBackward0", "CloneBackward0",
    "SliceBackward0", "SelectBackward0", "AliasBackward0", "ExpandBackward0", "TBackward0", "IndexBackward0",
})  # fmt: skip
_WEIGHED = ("Mul", "Div", "Neg", "Sub")  # what a program does to log-probabilities that it weighs


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """What a loss is not made for.

    Attributes:
        title: in a few words.
        why: what is seen.
        remedy: what to do.
    """

    title: str
    why: str
    remedy: str


def broken(call: LossCall) -> Wrong | None:
    """What this call was given that it is not made for; None: nothing, or nobody can tell."""
    scores = call.input
    if not scores.is_floating_point() or scores.numel() < 2 or not bool(torch.isfinite(scores).any()):
        return None
    with torch.no_grad():
        return _CONTRACTS[call.name](call, scores)


def _cross_entropy(_: LossCall, scores: Tensor) -> Wrong | None:
    dim = _classes(scores)
    if not _are_probabilities(scores, dim):
        return None
    n = scores.shape[dim]
    return Wrong(
        title="cross_entropy is given probabilities",
        why=f"a softmax was taken already: each row lies between 0 and 1 and sums to 1, so that the loss cannot fall "
        f"below {math.log1p((n - 1) / math.e):.3g} for a certain and right answer",
        remedy="give it the scores before the softmax",
    )


def _nll_loss(_: LossCall, scores: Tensor) -> Wrong | None:
    dim, title = _classes(scores), "nll_loss is given no log-probabilities"
    if _are_probabilities(scores, dim):
        return Wrong(
            title=title, why="each row lies between 0 and 1 and sums to 1: these are the probabilities themselves, "
            "whose gradient vanishes where the answer is wrong", remedy="take log_softmax in place of softmax",
        )  # fmt: skip
    if _origin(scores).startswith(_WEIGHED) or _is_normalised(scores, dim):
        return None
    other = next((d for d in range(scores.dim()) if d != dim and _is_normalised(scores, d)), None)
    if other is not None:
        return Wrong(
            title=title, why=f"they are normalised over dimension {other}, which is not that of classes ({dim})",
            remedy=f"take log_softmax over dimension {dim}",
        )  # fmt: skip
    return _positive(title, scores)


def _kl_div(call: LossCall, scores: Tensor) -> Wrong | None:
    title, target = "kl_div is given no log-probabilities", call.target
    if _origin(scores).startswith(_WEIGHED):
        return None
    wrong = _positive(title, scores)
    if wrong is not None:
        return wrong
    if call.has_log_target and _are_probabilities(target, -1):
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
    return _positive("ctc_loss is given no log-probabilities", scores)


def _n_blank(call: LossCall) -> int:
    """Labels, up to the length of each target, that are the blank."""
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


def _classes(scores: Tensor) -> int:
    return 1 if scores.dim() > 1 else 0


def _tolerance(values: Tensor) -> float:
    return max(_TOLERANCE, _ROUNDINGS * torch.finfo(values.dtype).eps)


def _are_probabilities(values: Tensor, dim: int) -> bool:
    """Whether each row lies between 0 and 1 and sums to 1."""
    if values.shape[dim] < 2 or values.numel() == values.shape[dim]:
        return False
    limit = _tolerance(values)
    values = values.float()
    return bool((values >= 0).all()) and bool(((values.sum(dim) - 1).abs() <= limit).all())


def _is_normalised(values: Tensor, dim: int) -> bool:
    """Whether the exponentials of each row sum to 1."""
    wide = values.float()
    return bool((wide.logsumexp(dim).abs() <= _tolerance(values) + _TOLERANCE * math.log(values.shape[dim] + 1)).all())


def _positive(title: str, scores: Tensor) -> Wrong | None:
    """Logarithms of probabilities lie below 0."""
    n = int((scores > _tolerance(scores)).sum())
    if not n:
        return None
    return Wrong(
        title=title, why=f"{n} of {scores.numel()} values lie above 0, where no logarithm of a probability does: the "
        "loss has no lower bound, or another one", remedy="take log_softmax of the scores first",
    )  # fmt: skip


def _origin(values: Tensor) -> str:
    """What has made the numbers: the name of a node of autograd's graph."""
    node = values.grad_fn
    while node is not None and node.name() in _SAME_VALUES and node.next_functions:
        node = node.next_functions[0][0]
    return "" if node is None else node.name()
