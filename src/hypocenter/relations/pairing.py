"""Whether the loss compares each output with its own label."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hypocenter.relations.called import LossCall
from hypocenter.relations.contracts import Wrong
from hypocenter.relations.facts import Facts, shift_of, stand_later
from hypocenter.relations.masks import covered, is_mask, padded_places
from hypocenter.relations.subject import Place, Subject
from hypocenter.tap.names import unwrap

_LEAST_ROWS = 3
_FARTHEST = 3  # places
_SUMS_OF_ROWS = ("SumBackward1", "LinalgVectorNormBackward0", "NormBackward1", "NormBackward2")
_LEAST_SILENT, _SILENT = 2, 0.125  # texts of a batch without a target, and their share
_MASKED, _STRAY = 0.6, 0.05  # shares of masks: of 80 % of the places that are asked for, and of all others
_LEAST_ASKED, _LEAST_TOKENS = 8, 3  # places with one token that is asked for there, and other tokens that are not


def crosswise(subject: Subject, facts: Facts, calls: Sequence[LossCall]) -> tuple[LossCall, Wrong] | None:
    """Find a loss that compares all outputs with all labels, so that labels may change places. One forward more."""
    call = next((each for each in calls if _is_of_loss(each)), None)
    turned: dict[Place, Tensor] = {}
    for each in facts.labels:
        if each.tensor.dim() and len(each.tensor) >= _LEAST_ROWS:
            turned[each.place] = each.tensor.roll(1, dims=0)
    is_other = any(not torch.equal(turned[e.place], e.tensor) for e in facts.labels if e.place in turned)
    if call is None or not is_other or not facts.ran.losses:
        return None
    limit = facts.tolerance / 10
    now = subject.run(turned).losses
    if len(now) != len(facts.ran.losses):
        return None
    if any(bool(((a - b).abs() > limit * b.abs()).any()) for a, b in zip(now, facts.ran.losses, strict=True)):
        return None
    shapes = f"{[*call.input.shape]} and {[*call.target.shape]}"
    return call, Wrong(
        title="the loss does not depend on which label belongs to which sample",
        why=f"{call.name} of {shapes} compares every output with every label, and the loss stays the same when labels "
        "change places", remedy="give both the same shape (squeeze or unsqueeze one of them)",
    )  # fmt: skip


def _is_of_loss(call: LossCall) -> bool:
    """Return whether exactly one of the two tensors depends on the model's parameters, and is no norm of its rows.

    Who keeps the dimension that a sum goes over (`z.square().sum(1, keepdim=True)`) wants all pairs.
    """
    ours, other = (call.input, call.target) if call.input.requires_grad else (call.target, call.input)
    return ours.requires_grad and not other.requires_grad and type(ours.grad_fn).__name__ not in _SUMS_OF_ROWS


def asked_of_padding(subject: Subject, facts: Facts) -> Wrong | None:
    """Return what is wrong if the loss asks for padding: labels under a mask that should be ignored."""
    if facts.targets is None:
        return None
    for mask in (each for each in subject.of_model if is_mask(each)):
        content = covered(mask, subject.of_model)
        padded = None if content is None else padded_places(mask, content.tensor)
        if content is None or padded is None or content.tensor.numel() != facts.targets.numel():
            continue
        asked = facts.targets.reshape(content.tensor.shape)
        if content.tensor.is_floating_point() or shift_of(content.tensor, asked) is None:
            continue  # what is asked for is not what follows there: the mask may be another's
        before_real = torch.zeros_like(padded)
        before_real[:, :-1] = ~padded[:, 1:]  # padding on the left: the first token is asked for there
        n, n_all = int(((asked >= 0) & padded & ~before_real).sum()), int((asked >= 0).sum())
        if n:
            return Wrong(
                title=f"the loss asks for padding: {n / n_all:.0%} of what it averages over",
                why=f"{n} of {n_all} places that count are padding by {mask.name}",
                remedy="set labels to -100 where the mask is 0, or weigh the loss with the mask",
            )
    return _asked_behind_the_end(subject, facts, facts.targets)


def _asked_behind_the_end(subject: Subject, facts: Facts, targets: Tensor) -> Wrong | None:
    """Return what is wrong if the loss asks for padding where `generate()` has ended, as the model itself says."""
    said = next((each for m in subject.modules if (each := getattr(unwrap(m), "generation_config", None))), None)
    pad, end = getattr(said, "pad_token_id", None), getattr(said, "eos_token_id", None)
    n = facts.n_rows
    if not (isinstance(pad, int) and isinstance(end, int)) or pad == end or not n or targets.numel() % n:
        return None
    asked = targets.reshape(n, -1)
    is_end, is_padding = asked == end, asked == pad
    has_ended = is_end.cumsum(1) > is_end.int()  # at a place before
    n_each, n_all = is_padding.sum(1), int((asked >= 0).sum())
    if not torch.equal(is_padding, has_ended & (asked >= 0)) or len(n_each.unique()) < 2:
        return None
    if int((n_each > 1).sum()) < _LEAST_ROWS:
        return None
    n_padding = int(is_padding.sum())
    return Wrong(
        title=f"the loss asks for padding: {n_padding / n_all:.0%} of what it averages over",
        why=f"{n_padding} of {n_all} places that count are {pad}, the pad_token_id, and all of them are behind {end}, "
        "the eos_token_id, where generate() has ended",
        remedy="set labels to -100 behind the end of each text",
    )


def asked_for_no_end(subject: Subject, facts: Facts) -> Wrong | None:
    """Return what is wrong if what ends each text is the token that pads, and is asked for nowhere.

    By the mask it belongs to the text, and it alone of what follows something is not asked for. Who does not want it
    to be learned puts no such token there.
    """
    targets = facts.targets
    for mask in subject.of_model if targets is not None else ():
        content = covered(mask, subject.of_model) if is_mask(mask) else None
        padded = None if content is None else padded_places(mask, content.tensor)
        if content is None or padded is None or targets is None or content.tensor.numel() != targets.numel():
            continue
        ids, asked = content.tensor, targets.reshape(content.tensor.shape)
        pads = ids[padded].unique()
        is_last = ~padded & torch.cat([padded[:, 1:], torch.zeros_like(padded[:, :1])], 1)  # padding comes behind it
        n = int(is_last.sum())
        if len(pads) != 1 or n < _LEAST_ROWS or shift_of(ids, asked) != 1:
            continue
        is_asked = torch.zeros_like(padded)
        is_asked[:, 1:] = asked[:, :-1] >= 0
        n_ends = int((is_last & (ids == pads) & ~is_asked & is_asked.roll(1, 1)).sum())
        if n_ends == n and not bool((asked == pads).any()):
            return Wrong(
                title=f"the token that ends each text is never asked for: {int(pads)}",
                why=f"it ends {n} of {len(ids)} texts by {mask.name}, and it is what pads them: labels of padding are "
                "ignored, and with them those of the ends",
                remedy="give padding a token of its own, or ignore labels by the mask, so that the model learns to end",
            )
    return None


def asked_for_nothing(subject: Subject, facts: Facts) -> Wrong | None:
    """Return what is wrong if the loss asks for no token of several texts, where it asks for the next one of others.

    By the gradient, or where a model is given labels and gives no logits back, by these: the tokens themselves.
    """
    for each in subject.of_model:
        ids = each.tensor
        asked = _asked_next(ids, facts) if ids.dim() == 2 and not ids.is_floating_point() else None
        if asked is None:
            continue
        is_text = (ids != ids[:, :1]).any(1)  # a row of padding alone fills up a batch
        n, n_texts = int((is_text & (asked < 0).all(1)).sum()), int(is_text.sum())
        if n >= _LEAST_SILENT and n >= _SILENT * n_texts:
            return Wrong(
                title=f"texts of the batch have no token that the loss asks for: {n} of {n_texts}",
                why="all their labels are ignored, so that nothing is learned from them: answers are cut off where "
                "texts are too long, or what marks an answer is not found",
                remedy="make room for the answers (a greater length, or cut the beginning), or leave these texts out",
            )
    return None


def _asked_next(ids: Tensor, facts: Facts) -> Tensor | None:
    """Return at each place the next token where it is asked for, else a negative number; None: unknown."""
    if facts.targets is not None:
        asked = facts.targets.reshape(ids.shape) if facts.targets.numel() == ids.numel() else None
        return asked if asked is not None and shift_of(ids, asked) == 1 else None
    for label in (each.tensor for each in facts.labels):
        if label.shape == ids.shape and label is not ids and label.dtype == ids.dtype:
            counts = label >= 0
            if bool(counts.any()) and not bool(counts.all()) and torch.equal(label[counts], ids[counts]):
                return label[:, 1:]
    return None


def asked_too_late(subject: Subject, facts: Facts) -> Wrong | None:
    """Return what is wrong if the tokens that the loss asks for stand two or more places later in the input.

    The program has given labels that it has shifted already: a model may be meant to say the token after the next.
    """
    if facts.targets is None:
        return None
    for each in subject.of_model:
        ids = each.tensor
        if ids.dim() != 2 or ids.is_floating_point() or ids.numel() != facts.targets.numel():
            continue
        asked = facts.targets.reshape(ids.shape)
        if any(stand_later(ids, asked, places) for places in (0, 1)):
            continue
        given = [g.tensor for g in subject.given if g.tensor.shape == ids.shape and not g.tensor.is_floating_point()]
        for places in range(2, min(_FARTHEST + 1, ids.shape[1])):
            if stand_later(ids, asked, places) and any(stand_later(ids, each, places - 1) for each in given):
                return Wrong(
                    title=f"the loss asks for the token {places} places later",
                    why=f"at each place what is asked for stands {places} places later in {each.name}: labels are "
                    "shifted twice, by the program and by the model",
                    remedy="give the model labels that are not shifted",
                )
    return None


def asked_as_given(subject: Subject, facts: Facts) -> Wrong | None:
    """Return what is wrong if the loss asks for one token alone, wherever that stands in the input and nowhere else.

    Who gives back an input is asked for more than one. This is what masks a text, and takes the mask for the label.
    """
    if facts.targets is None:
        return None
    for each in subject.of_model:
        ids = each.tensor
        if ids.dim() != 2 or ids.is_floating_point() or ids.numel() != facts.targets.numel():
            continue
        asked = facts.targets.reshape(ids.shape)
        counts = asked >= 0
        n, others = int(counts.sum()), ids[~counts].unique()
        if n < _LEAST_ASKED or len(others) < _LEAST_TOKENS or int(counts.any(1).sum()) < _LEAST_ROWS:
            continue
        token = asked[counts][0]
        if bool((asked[counts] == token).all() & (ids[counts] == token).all() & (others != token).all()):
            return Wrong(
                title=f"the loss asks for the token that marks where it asks: {int(token)}",
                why=f"at all {n} places that count {each.name} holds {int(token)}, and so does the label; at no other "
                "place: labels were taken after, or from, what was masked",
                remedy="clone the labels before tokens are masked",
            )
    return None


def asked_before_its_mask(subject: Subject, facts: Facts) -> Wrong | None:
    """Return what is wrong if what is asked for is masked one place later in the input, and not where it is asked.

    So it is where labels of masked tokens are given to a model that shifts its labels, to say the next token.
    """
    if facts.targets is None:
        return None
    for each in subject.of_model:
        ids = each.tensor
        if ids.dim() != 2 or ids.is_floating_point() or ids.numel() != facts.targets.numel() or ids.shape[1] < 2:
            continue
        asked = facts.targets.reshape(ids.shape)[:, :-1]
        counts, here, later = asked >= 0, ids[:, :-1], ids[:, 1:]
        if int(counts.sum()) < _LEAST_ASKED or int(counts.any(1).sum()) < _LEAST_ROWS:
            continue
        token = later[counts].mode().values
        is_masked = later == token
        share, elsewhere = is_masked[counts].double().mean(), is_masked[~counts].double().mean()
        is_known = (asked[counts] == later[counts]).double().mean() > _MASKED / 2
        if share < _MASKED or elsewhere > _STRAY or (here[counts] == token).double().mean() > share / 2 or is_known:
            continue
        return Wrong(
            title="the loss asks for masked tokens one place before their mask",
            why=f"one place after what it asks for {each.name} holds {int(token)} in {share:.0%} of cases, elsewhere "
            f"in {elsewhere:.0%}: labels of masked tokens, of a model that says the next token",
            remedy="give a model that says the next token labels that are its input (mlm=False), or let one that "
            "fills in masks have these",
        )
    return None
