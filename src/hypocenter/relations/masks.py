"""Masks of padding among the inputs of a model, and what they cover."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hypocenter.relations.subject import Given, Subject


def is_mask(given: Given) -> bool:
    """Return whether this input is a mask: a row of zeros and ones for each sample."""
    tensor = given.tensor
    if tensor.dim() != 2 or "type" in given.name:
        return False
    return bool(((tensor == 0) | (tensor == 1)).all()) and bool((tensor == 0).any()) and bool((tensor == 1).any())


def covered(mask: Given, contents: list[Given]) -> Given | None:
    """Return the first input that this mask covers: same shape, same call, and the same model or decoder."""
    of_decoder = mask.name.startswith("decoder_")
    fitting = [c for c in contents if c.tensor.shape[:2] == mask.tensor.shape]
    fitting = [c for c in fitting if c.name.startswith("decoder_") == of_decoder and c.place[0] == mask.place[0]]
    return fitting[0] if fitting else None


def padded_places(mask: Given, content: Tensor) -> Tensor | None:
    """Return where there is padding, as booleans [n, length]; None if this is no mask of padding."""
    zero = mask.tensor == 0
    for padded in (zero, ~zero):
        if not _is_at_an_edge(padded):
            continue
        is_named = ("attention_mask" in mask.name and padded is zero) or "padding_mask" in mask.name
        below = content[padded]
        is_constant = bool((below == below[:1]).all())
        if is_constant or (is_named and "padding_mask" not in mask.name):
            return padded
    return None


def padding_token(module: nn.Module, tokens: Tensor) -> int | None:
    """Return the token that pads these, [n, length], by what the model says of itself; None if none does.

    It stands at one edge of samples only, and not as often in all of them.
    """
    if tokens.dtype not in (torch.int64, torch.int32):
        return None
    said = [getattr(getattr(module, "config", None), "pad_token_id", None)]
    said += [each.padding_idx for each in module.modules() if isinstance(each, nn.Embedding)]
    for token in dict.fromkeys(each for each in said if isinstance(each, int)):
        padded = tokens == token
        if len(padded.sum(1).unique()) > 1 and _is_at_an_edge(padded):
            return token
    return None


def _is_at_an_edge(padded: Tensor) -> bool:
    """Return whether padding is one run at the end of each sample, or at its beginning, and never all of it."""
    steps = padded[:, 1:].int() - padded[:, :-1].int()
    at_end = not bool((steps < 0).any())
    at_beginning = not bool((steps > 0).any())
    return (at_end or at_beginning) and not bool(padded.all(1).any())


def but_padding(ids: Given, targets: Tensor, subject: Subject) -> Tensor:
    """Return what is asked for, but of padding: before a text it may attend to anything, as all is masked there."""
    for mask in subject.of_model:
        if mask.place[0] == ids.place[0] and mask.tensor.shape == ids.tensor.shape and is_mask(mask):
            padded = padded_places(mask, ids.tensor)
            targets = targets if padded is None else targets.masked_fill(padded, -1)
    return targets
