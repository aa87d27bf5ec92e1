"""Look at how a micro-batch computes its loss and, in functions of its own, its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hypocenter.nouns import Source
from hypocenter.relations import contracts, derivative
from hypocenter.relations.called import Called, FunctionCall, LossCall
from hypocenter.relations.contracts import Wrong
from hypocenter.relations.facts import Facts, stand_later
from hypocenter.relations.subject import Place, Subject
from hypocenter.relations.weights import Mixed

_LEAST_ROWS = 3
_FARTHEST = 3  # places


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is wrong.

    Attributes:
        code: of the rule.
        wrong: in words.
        module: path of the module whose code it is in, "" outside of any.
        source: the line.
        size: relative error of a backward; 0: of another kind.
    """

    code: str
    wrong: Wrong
    module: str = ""
    source: Source | None = None
    size: float = 0.0


def look_at_loss(subject: Subject, facts: Facts | None) -> list[Found]:
    """One forward, and one more where outputs and labels meet crosswise.

    Args:
        facts: of it, where they are known.

    Raises:
        ReplayImpossible, OutOfTime: with the reason.
    """
    called, errors = Called(subject), list[tuple[FunctionCall, tuple[float, str]]]()

    def derivatives(_: object) -> None:
        called.stop()
        for call in called.functions.values():
            error = derivative.error_of(call)
            if error is not None and error[0] > derivative.LIMIT:
                errors.append((call, error))

    subject.run(then=derivatives, beside=called.listening())

    def found(code: str, wrong: Wrong, call: LossCall | FunctionCall | None, size: float = 0.0) -> Found:
        source = None if call is None else call.source
        return Found(code=code, wrong=wrong, module=_path(call and call.module), source=source, size=size)

    def _path(module: nn.Module | None) -> str:
        return "" if module is None else subject.name(module) or ""

    all_found = [found("HC251", wrong, call) for call in called.losses if (wrong := contracts.broken(call))]
    if facts is not None:
        crosswise = in_other_order(subject, facts, called.pairs)
        if crosswise is not None:
            all_found.append(found("HC252", crosswise[1], crosswise[0]))
        late = asked_too_late(subject, facts)
        if late is not None:
            all_found.append(found("HC252", late, None))
    for mixed, module, source in called.mixed[:1]:  # the others are calls of the same code
        wrong = _not_an_average(mixed, len(called.mixed))
        all_found.append(Found(code="HC256", wrong=wrong, module=_path(module), source=source))
    all_found += [found("HC253", _not_the_derivative(call, error), call, error[0]) for call, error in errors]
    return all_found


def _not_an_average(mixed: Mixed, n: int) -> Wrong:
    return Wrong(
        title="attention is normalised over the wrong dimension",
        why=f"weights of shape {[*mixed.shape]} sum to 1 over dimension {mixed.dim}, and values are summed over "
        f"another: what comes out is no average of them ({n} such product{'s' * (n > 1)})",
        remedy="take the softmax over the dimension that the product sums over, mostly the last",
    )


def _not_the_derivative(call: FunctionCall, error: tuple[float, str]) -> Wrong:
    size, argument = error
    return Wrong(
        title=f"the backward of {call.function.__qualname__} is not the derivative of its forward",
        why=f"by argument {argument}: in float64 what backward gives is {size:.2g} of its size away from differences "
        "of the forward",
        remedy="mend the formula in backward; torch.autograd.gradcheck confirms it",
    )


def in_other_order(subject: Subject, facts: Facts, calls: Sequence[LossCall]) -> tuple[LossCall, Wrong] | None:
    """A difference of all outputs with all labels: the loss stays when labels change places. One forward more."""
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
    """What is made of an output and of something that is none."""
    return call.input.requires_grad != call.target.requires_grad


def asked_too_late(subject: Subject, facts: Facts) -> Wrong | None:
    """Tokens that the loss asks for stand two places later in the input, or more."""
    if facts.targets is None:
        return None
    for each in subject.of_model:
        ids = each.tensor
        if ids.dim() != 2 or ids.is_floating_point() or ids.numel() != facts.targets.numel():
            continue
        asked = facts.targets.reshape(ids.shape)
        if any(stand_later(ids, asked, places) for places in (0, 1)):
            continue
        for places in range(2, min(_FARTHEST + 1, ids.shape[1])):
            if stand_later(ids, asked, places):
                return Wrong(
                    title=f"the loss asks for the token {places} places later",
                    why=f"at each place what is asked for stands {places} places later in {each.name}: labels are "
                    "shifted twice, by the program and by the model",
                    remedy="give the model labels that are not shifted",
                )
    return None
