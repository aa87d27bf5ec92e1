"""Look at how a micro-batch computes its loss and, in functions of its own, its gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from hypocenter.nouns import Source
from hypocenter.relations import contracts, derivative, flat, pairing
from hypocenter.relations.called import Called, FunctionCall, LossCall
from hypocenter.relations.contracts import Wrong
from hypocenter.relations.crossed import crossed
from hypocenter.relations.facts import Facts
from hypocenter.relations.flat import Break
from hypocenter.relations.subject import Ran, Subject
from hypocenter.relations.weights import Mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Something that is wrong with the loss, or with the gradients below it.

    Attributes:
        code: of the rule.
        wrong: in words.
        module: path of the module whose code it is in, "" outside of any.
        source: the line.
        size: relative error of a backward; 0: of another kind.
        parameters: names of those that have no gradient because of it.
        was_asked: at an earlier look, and was not so.
    """

    code: str
    wrong: Wrong
    module: str = ""
    source: Source | None = None
    size: float = 0.0
    parameters: tuple[str, ...] = ()
    was_asked: bool = True


class OfLoss:
    """What the unchanged forward tells of its loss: a listener of `facts_of`.

    Args:
        subject: whose forward it is.
    """

    def __init__(self, subject: Subject) -> None:
        self.called, self._is_alone = Called(subject), subject.lead is None
        self.errors: list[tuple[FunctionCall, tuple[float, str], float]] = []  # what its backward was given, at last
        self.losses: list[Tensor] = []
        self.listening = self.called.listening

    def take(self, ran: Ran) -> None:
        """Compare the backward of each of the program's own autograd functions with its derivative."""
        self.called.stop()
        self.losses = [value.detach() for value in ran.losses]
        for call in self.called.functions.values() if self._is_alone else ():  # they may talk to other ranks
            given = derivative.given_to(call.function, ran.losses)
            for gradient in dict.fromkeys((1.0, given)):
                error = derivative.error_of(call, gradient)
                if error is not None and error[0] > derivative.LIMIT:
                    self.errors.append((call, error, gradient))
                    break


def look_at_loss(subject: Subject, of_loss: OfLoss, facts: Facts | None) -> list[Found]:
    """Return what is wrong with the loss; runs more forwards only where its shapes or missing gradients ask for it.

    Args:
        of_loss: has listened to the unchanged forward.
        facts: of it, where they are known.

    Raises:
        ReplayImpossible, OutOfTime: with the reason.
    """
    called, errors = of_loss.called, of_loss.errors

    def found(code: str, wrong: Wrong, call: LossCall | FunctionCall | Break | None, size: float = 0.0) -> Found:
        source = None if call is None else call.source
        return Found(code=code, wrong=wrong, module=_path(call and call.module), source=source, size=size)

    def _path(module: nn.Module | None) -> str:
        return "" if module is None else subject.name(module) or ""

    all_found = [found("HC251", wrong, call) for call in called.losses if (wrong := contracts.broken(call))]
    if facts is not None:
        crosswise = pairing.crosswise(subject, facts, called.pairs) or crossed(subject, facts, called.pairs)
        if crosswise is not None:
            all_found.append(found("HC252", crosswise[1], crosswise[0]))
        late = (
            pairing.asked_too_late(subject, facts)
            or pairing.asked_as_given(subject, facts)
            or pairing.asked_before_its_mask(subject, facts)
            or pairing.asked_for_nothing(subject, facts)
        )
        if late is not None:
            all_found.append(found("HC252", late, None))
        padding = pairing.asked_of_padding(subject, facts)
        if padding is not None:
            all_found.append(found("HC243", padding, None))
        endless = pairing.asked_for_no_end(subject, facts)
        if endless is not None:
            all_found.append(found("HC243", endless, None))
    for mixed, module, source in called.mixed[:1]:  # the others are calls of the same code
        wrong = _not_an_average(mixed, len(called.mixed))
        all_found.append(Found(code="HC256", wrong=wrong, module=_path(module), source=source))
    all_found += [found("HC253", _not_the_derivative(*each), each[0], each[1][0]) for each in errors]
    for place, wrong, names in flat.cut_by_flat(subject, of_loss.losses):
        all_found.append(replace(found("HC258", wrong, place), parameters=names))
    return all_found


def _not_an_average(mixed: Mixed, n: int) -> Wrong:
    return Wrong(
        title="attention is normalised over the wrong dimension",
        why=f"weights of shape {[*mixed.shape]} sum to 1 over dimension {mixed.dim}, and values are summed over "
        f"another: what comes out is no average of them ({n} such product{'s' * (n > 1)})",
        remedy="take the softmax over the dimension that the product sums over, mostly the last",
    )


def _not_the_derivative(call: FunctionCall, error: tuple[float, str], given: float) -> Wrong:
    (size, argument), name = error, call.function.__qualname__
    away = f"in float64 what backward gives is {size:.2g} of its size away from differences of the forward"
    if given == 1.0:
        return Wrong(
            title=f"the backward of {name} is not the derivative of its forward",
            why=f"by argument {argument}: {away}",
            remedy="mend the formula in backward; torch.autograd.gradcheck confirms it",
        )
    return Wrong(
        title=f"the backward of {name} does not use the gradient that it is given",
        why=f"by argument {argument}: {away}; it is given {given:.6g}, and for 1 it is right",
        remedy="multiply what backward returns by the gradient of the output, its argument",
    )
