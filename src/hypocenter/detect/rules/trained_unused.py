"""A parameter drops out of training, or was never in it.

What it means
    A parameter that had a gradient at every update has none any more (it was frozen, cut off from the loss, or replaced
    by another, or its adapter was merged for an evaluation and not taken out again), or one that has a gradient is in
    no optimizer: it was left out of the list, or its module was built anew after the optimizer was made, or it lies in
    a plain list, where `parameters()` does not look, or `forward` makes it anew. It stays as it is while everything
    else learns. Or a forward in training was never gone back from: its batch is computed and thrown away. Or something
    is used twice: two backward passes begin at one loss, or two updates use the same gradients. Or what is computed
    from a parameter comes to the loss without its gradient (`detach()`, `no_grad()`), where it came with it before: one
    of two uses of a tied weight, one term of the loss. Or a term of the loss is made of gradients (a gradient penalty,
    forces, the residual of a differential equation) that were taken without `create_graph=True`: a constant. Or an
    optimizer holds a parameter that never gets a gradient, though its values come to the loss, or while its like in
    other layers do (an expert that nothing is sent to). Or the gradients of some micro-batches are in no update at all.
    Or every gradient is exactly 0 while the loss is not: what is trained and what it is held against are one tensor,
    and their gradients cancel out; so may those of a part of the model (a policy whose old log-probabilities kept their
    graph). Or two optimizers hold one parameter, and both move it by
    the same gradient. Or a term of the loss is made of indices and truth values alone (a
    note: how many tokens each expert was sent): it has no gradient.

How it is decided
    A parameter with a gradient that is not zero at each of the first four updates of its optimizer, and none, or zero,
    at eight updates in a row, while its module is still called, or is of an adapter that its layer, in training, says
    is merged (peft). A parameter that an optimizer held, in whose place the model has another tensor of numbers that
    asks for no gradient, unless it is so with half of them. A parameter with a gradient that no optimizer of the
    program holds, at updates 1, 2, 4, 8, ... and every 1000th, or while an optimizer steps that never had one, or has
    had none for eight updates in a row and had some before, when nothing outside had (a second adapter, which the
    optimizer was made without). The same at four of the steps 0, 1, 2, 4, 8, ... 64 for what lies among others in a
    list or dict of a trained model, or is made in `forward`, unless it moves, is a copy of what an optimizer holds, or
    hands its gradient on to that. At steps of `--audit`: a summand of the loss, not zero, that has no gradient, and is
    computed from what `torch.autograd.grad` gave without a graph, with no `detach()` and no `no_grad()` after it. A
    call of a model in training that no backward went through, in a step of fewer micro-batches than the audited steps
    before, in which there was no such call. Two backward passes of one step from the same loss, or an update with the
    gradients of the one before and no backward pass between, after three updates without that. At the end: at least
    eight backward passes since the last update, and four times as many as any update before had, by the lines that
    train: others may want gradients for another purpose. At steps of `--audit` with more micro-batches than usual, of
    one rank: those that the gradient which is used is not made of, although their losses and gradients are no larger
    than what was used at the updates before. Who leaves out an update on purpose, because its loss or gradient is too
    large or not finite, is not spoken of. Gradients that were there when another optimizer stepped, at four updates in
    a row: a note, and a warning where they are more than 1 % of what is used, the very first update of all was made
    without them, and other lines called backward for them than after, or where they ask for the contrary of what is
    added to them (a cosine below -0.7). Two optimizers of torch (SGD, Adam, AdamW) that step, at four updates of the
    first 64 steps in a row, without a backward pass between, where both move a parameter, its gradient is the same
    tensor with the same bits, and each holds others as well. A weight of two dimensions and more, whose gradient is
    exactly 0 at each of the first five updates, as is all else that its module has, where others of its optimizer are
    not: at the fifth two ways or more brought it something else than 0. Layers of one place in their list (two and
    more) that had no gradient in twelve updates, while their like is called as often as all of them should be: a
    warning. A table that is only looked up and added before its ways meet is a bias, and none of these.

What to do
    Give the parameter to the optimizer, or tell the program that it is not trained: `requires_grad_(False)`. Make the
    optimizer after the model is complete, keep layers in `nn.ModuleList`, and make parameters in `__init__`. Look for
    `detach()`, `no_grad()` and branches on the way to the loss. Take gradients that a loss is made of with
    `create_graph=True`.

When it is wrong
    A curriculum that stops to train a part on purpose without `requires_grad_(False)`, and goes on to call it. A note
    is: what was frozen by `requires_grad_(False)`; what is not called any more; what comes to the loss only through a
    multiplication by 0 (a term whose weight has gone down to nothing); what no optimizer holds where none holds others
    of its module either, or of its layer and the same of another layer; what is thrown away (at the end of an epoch, to
    measure something); a way to the loss that is cut while others are left, or from the start.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import (
    ALL,
    ALWAYS,
    CANCELLED,
    CONSTANT,
    COUNTED,
    CUT_OFF,
    HIDDEN,
    MADE_ANEW,
    MERGED,
    NEVER,
    NEVER_USED,
    NO_GRADIENT,
    NOT_CONSUMED,
    NOT_STEPPED,
    NOT_USED,
    NOTHING,
    PILED,
    REPLACED,
    SITE,
    STRANGER,
    THROWN_AWAY,
    TIMES_NOTHING,
    TWO_HANDS,
    USED_TWICE,
)
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy, Severity, replace

_THEN = {
    NO_GRADIENT: "it does not learn",
    NOT_STEPPED: "it does not learn",
    NOT_CONSUMED: "its batch is computed and thrown away",
    NOT_USED: "nothing is learned",
    PILED: "it goes after the loss of the other too",
    USED_TWICE: "what is used twice counts double",
    CANCELLED: "it does not learn",
    TWO_HANDS: "it moves twice as far as what one of them holds",
    THROWN_AWAY: "nothing is learned from them",
    CUT_OFF: "it learns nothing from that part of the loss",
    COUNTED: "nothing is learned from that part of the loss",
    CONSTANT: "nothing is learned from that part of the loss",
    NEVER: "it does not learn",
    NEVER_USED: "it does not learn",
}
_ADD = Remedy(
    action="hold-parameter",
    text="make the optimizer after the last change of the model, or optimizer.add_param_group({'params': [...]})",
)
_REGISTER = Remedy(
    action="register-parameter", text="make that list or dict an nn.ModuleList, nn.ModuleDict or nn.ParameterList"
)
_MAKE_ONCE = Remedy(action="make-once", text="make it once, in __init__, before the optimizer")
_HELD = {HIDDEN: _REGISTER, MADE_ANEW: _MAKE_ONCE}
_CLEAR = Remedy(
    action="zero-grad-apart",
    text="call zero_grad() of an optimizer before the backward of its own loss, or detach() for the other",
)
_WITH_GRAPH = Remedy(action="create-graph", text="take these gradients with create_graph=True")
_BIND = Remedy(
    action="bind-each",
    text="let each hook hold its own (lambda ..., i=i: or functools.partial): a loop's variable is its last value",
)
_UNMERGE = Remedy(action="unmerge", text="call unmerge_adapter() after the evaluation, before training goes on")
_OF_GONE = {
    MERGED: _UNMERGE,
    REPLACED: Remedy(
        action="train-what-is-new",
        text="let it ask for a gradient (from_pretrained(..., freeze=False), requires_grad_()), in an optimizer",
    ),
}
_MATTER = ("", *_OF_GONE)  # why a parameter has no gradient any more, where nobody means it
_WHY_GONE = {
    MERGED: "its adapter is merged into the weights of its layer, which leaves it out in training too",
    REPLACED: "another tensor has taken its place in the model, and asks for no gradient: Embedding.from_pretrained "
    "makes such a one, and so does a detached copy",
    TIMES_NOTHING: "all that the loss is given of it is multiplied by 0",
}
PILED_MATTERS = 0.01  # share of the gradient
CONTRARY = -0.7  # cosine of two gradients: who adds two losses on purpose adds none that nearly undoes the other


_DETACH = Remedy(action="detach", text="compute what is only compared with under torch.no_grad(), or take its detach()")
_ONE_HAND = Remedy(action="one-optimizer", text="give what the two share to one of them")


@rule("HC233", "stagnation", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire once a step for each kind of what is trained in vain: no gradient, no update, not used."""
    rows = list(window.by_phase["optimizer"])
    gone = [row for row in rows if row.port == NO_GRADIENT and row.module != ALL]
    idle = [row for row in rows if row.port == NO_GRADIENT and row.module == ALL]
    if idle and window.record is not None and window.record.loss:
        why = (
            f"all {idle[0].call} gradients were exactly 0 at each of the first {idle[0].summary.sum:.0f} updates, and "
            f"the loss is {window.record.loss:.4g}"
        )
        found = _finding(window, idle, "warning", "every gradient is 0: nothing is trained", window.step, why)
        yield replace(found, site="", param=None)
    if gone:
        gone.sort(key=lambda row: _MATTER.index(row.module) if row.module in _MATTER else len(_MATTER))
        first, begin = gone[0], window.step - round(gone[0].summary.sum) + 1
        since = f"{first.site} had a gradient at each of the first updates, and has none since step {begin}"
        severity: Severity = "warning" if first.module in _MATTER else "note"
        found = _finding(window, gone, severity, f"{first.site} has no gradient any more", begin, since)
        if first.module in _WHY_GONE:
            found = replace(found, why=(*found.why, _WHY_GONE[first.module]))
        yield replace(found, remedy=_OF_GONE.get(first.module, found.remedy))
    left_out = [row for row in rows if row.port == NOT_STEPPED]
    if left_out:
        first = next((row for row in left_out if row.module), left_out[0])
        ordered = [first, *(row for row in left_out if row is not first)]
        since_step = window.step - round(first.summary.sum)
        beside = f"{first.site} gets a gradient, and no optimizer holds it"
        if first.module == NOTHING and first.op:
            beside = (
                f"no optimizer holds it, and {first.op}, which steps, has no gradient any more of what it holds: "
                f"{first.names[0]} had one before"
            )
        elif first.module == NOTHING:
            beside = "the optimizer that steps has a gradient for none of its own: it holds what the model does not use"
        elif first.module == HIDDEN:
            beside = f"no optimizer is given it: parameters() does not look into {first.op}, which is no module"
        elif first.module == MADE_ANEW:
            beside = "forward makes another parameter under this name in each step: no optimizer can hold that"
        elif first.module == first.site:
            beside = f"the optimizer holds another tensor, which the model had under the name {first.site} before"
        elif first.module == STRANGER:
            beside = "the optimizer holds another like it that is in no model and has no gradient"
        elif first.module:
            beside = f"{first.module} is in an optimizer, {first.site} is in none"
        severity = "warning" if first.module else "note"
        found = _finding(window, ordered, severity, f"{first.site} is trained by no optimizer", since_step, beside)
        yield replace(found, remedy=_HELD.get(first.module, _ADD) if first.module else None)
    for row in rows:
        if row.port == NOT_CONSUMED:
            why = f"{round(row.summary.sum)} of the calls of {row.module} in this step were not gone back from"
            title = "a forward in training has no backward"
            yield _finding(window, [row], "warning", title, window.step, why)
        elif row.port == PILED:
            why = (
                f"at {row.summary.sum:.0f} updates in a row a backward for other parameters had left gradients here; "
                f"when the {row.module} of those had made its step, they were not cleared, and backward added to them"
            )
            title = "gradients of another optimizer's loss are in this update"
            share, cosine = float(row.op or 0), float(row.names[1] or 0) if len(row.names) > 1 else 0.0
            severity = "warning" if share > PILED_MATTERS or cosine < CONTRARY else "note"
            found = _finding(window, [row], severity, title, max(0, window.step - round(row.summary.sum) + 1), why)
            said = [f"so it is with {row.names[0]}"] if row.names and row.names[0] else []
            if share:
                said.append(
                    f"the first update was made without; now {share:.0%} is of a backward for the other, a step before"
                )
            elif cosine < CONTRARY:
                said.append(f"one asks for the contrary of the other: the cosine of the two gradients is {cosine:.2f}")
            if severity == "warning" and not share:
                found = replace(found, confidence="likely")
            yield replace(found, why=(*found.why, *said), remedy=_CLEAR)
        elif row.port in (USED_TWICE, NOT_USED):
            severity: Severity = "note" if row.module == ALL else "warning"
            yield _finding(window, [row], severity, *_of_use(window.step, row))
        elif row.port == CUT_OFF:
            yield _cut_off(window, row)
        elif row.port == NEVER_USED:
            n = round(row.summary.sum)
            why = f"it is in an optimizer and had none at any of the first {n} updates; {row.module} had"
            severity = "warning" if row.names else "note"
            step = 0 if row.names else window.step
            found = _finding(window, [row], severity, f"nothing ever used {row.site}", step, why)
            more = (f"the same for {row.call - 1} more parameters",) if row.call > 1 else ()
            if row.names:
                layer = row.module.rpartition(".")[0]
                calls = f"{layer} is called {row.names[0]} times a micro-batch: once for itself and for each of these"
                more, found = (calls, *more), replace(found, remedy=_BIND)
            yield replace(found, why=(*found.why, *more))
        elif row.port == CONSTANT:
            yield _constant(window, row)
        elif row.port == NEVER:
            yield _never(window, row)
        elif row.port == COUNTED:
            yield _counted(window, row)
        elif row.port == TWO_HANDS:
            yield _two_hands(window, row)
        elif row.port == CANCELLED:
            yield _cancelled(window, row)
        elif row.port == THROWN_AWAY and row.module == ALWAYS:
            n = round(row.summary.sum)
            title = f"the gradients of {n} of {n + row.call} micro-batches are in no update"
            why = (
                "at each audited step from the first on the update is made of the last of its micro-batches alone, "
                "although all are calls of one loop"
            )
            yield _finding(window, [row], "warning", title, window.step, why)
        elif row.port == THROWN_AWAY:
            n = round(row.summary.sum)
            title = f"the gradients of {n} micro-batch{'es' * (n > 1)} are thrown away before this update"
            why = f"the update is made of the {row.call} after; neither losses nor gradients of the others are larger"
            yield _finding(window, [row], "note", title, window.step, why)


def _cut_off(window: Window, row: Reading) -> Finding:
    title = f"no gradient comes back to {row.site} on one of its ways to the loss"
    where = ", ".join(name or "the model" for name in row.names)
    why = [f"in {where} {row.op} is given what comes from it without its gradient, as at none of {row.call} audited "
           "steps before", "as much of the loss is computed from parameters as at these steps"]  # fmt: skip
    found = _finding(window, [row], "note", title, window.step, why[0])
    n_more = round(row.summary.sum) - 1
    more = (f"the same for {n_more} more parameters",) if n_more else ()
    return replace(found, why=(*why, *more))


def _constant(window: Window, row: Reading) -> Finding:
    where = f" in {row.module}" if row.module not in ("", "loss") else ""
    why = (
        f"gradients that were taken{where} without create_graph=True are constants, and so is what is made of them: a "
        "term that is added to the loss and changes its value only"
    )
    found = _finding(window, [row], "warning", "a term of the loss made of gradients has no gradient", window.step, why)
    phase = "forward" if where else "loss"
    return replace(found, site=row.module, source=row.source, phase=phase, remedy=_WITH_GRAPH)


def _never(window: Window, row: Reading) -> Finding:
    where = ", ".join(name or "the model" for name in row.names)
    why = f"it is in an optimizer, and what is computed from it comes to the loss, in {where} without its gradient"
    found = _finding(window, [row], "note", f"no gradient ever comes back to {row.site}", window.step, why)
    n_more = round(row.summary.sum) - 1
    more = (f"the same for {n_more} more parameters",) if n_more else ()
    return replace(found, why=(*found.why, f"so it is at each of {row.call} audited steps", *more))


def _counted(window: Window, row: Reading) -> Finding:
    where = f" in {row.module}" if row.module not in ("", "loss") else ""
    why = (
        f"{row.op}{where} gives indices or truth values, which have no gradient; a term that is made of them alone is "
        f"added to the loss at each of {row.summary.sum:.0f} audited steps, and changes its value only"
    )
    found = _finding(window, [row], "note", "a term of the loss made of counts has no gradient", window.step, why)
    return replace(found, site=row.module, source=row.source, phase="loss" if not where else "forward")


def _two_hands(window: Window, row: Reading) -> Finding:
    more = f" and {row.call - 1} more" if row.call > 1 else ""
    why = f"{row.op} both hold it, and step one after the other with no backward pass between: each has moved it"
    title = f"two optimizers move {row.site}{more} by the same gradient"
    step = window.step - round(row.summary.sum)
    found = _finding(window, [row], "warning", title, step, why)
    return replace(found, why=(*found.why, "each has parameters of its own too"), remedy=_ONE_HAND)


def _cancelled(window: Window, row: Reading) -> Finding:
    why = (
        f"its gradient is exactly 0 at each of the first updates, and the sum of {row.summary.sum:.0f} that are not 0: "
        "the loss holds a difference of what is computed from it and the same again"
    )
    found = _finding(window, [row], "warning", f"what comes back to {row.site} cancels out", 0, why)
    more = (f"the same for {row.call - 1} more parameters",) if row.call > 1 else ()
    return replace(found, why=(*found.why, *more), remedy=_DETACH)


def _of_use(step: int, row: Reading) -> tuple[str, int, str]:
    """Return title, step, and why."""
    if row.port == NOT_USED:
        n = round(row.summary.sum)
        return (
            f"the gradients of the last {n} micro-batches are in no update", step,
            f"{n} backward passes were made since the last update; an update before took {row.call} at most",
        )  # fmt: skip
    if row.module == ALL:
        title = "each loss is gone back from twice"
        return title, step, f"two backward passes begin at one loss at each of the first {row.call} updates"
    if row.module == "loss":
        title = f"micro-batch {row.op} is gone back from twice"
        return title, step, f"two backward passes begin at its loss; at {row.call} updates before no loss had two"
    title = "two updates use the same gradients"
    return title, step, f"there is no backward pass between them; at {row.call} updates before there was one"


def _finding(
    window: Window, rows: list[Reading], severity: Severity, title: str, step: int, first_why: str
) -> Finding:  # fmt: skip
    first = rows[0]
    why = [first_why]
    if len(rows) > 1:
        others = ", ".join(row.site for row in rows[1:4])
        why.append(f"the same for {len(rows) - 1} more: {others}{' ...' if len(rows) > 4 else ''}")
    is_parameter = first.port in (TWO_HANDS, CANCELLED, NO_GRADIENT, NOT_STEPPED, CUT_OFF, NEVER, NEVER_USED)
    return Finding(
        code="HC233",
        kind="stagnation",
        severity=severity,
        title=title,
        step=step,
        rank=window.rank,
        phase="forward" if first.port == NOT_CONSUMED else "optimizer",
        site=first.module if first.port == NOT_CONSUMED else None if first.site == SITE else first.site,
        param=first.site if is_parameter else None,
        cause="unknown" if severity == "note" else "program-error",  # what is seen is certain, and may be meant
        why=tuple(why),
        then=(_THEN[first.port],),
        confidence="possible" if severity == "note" else "proven",
    )
