"""The rule of an optimizer as two functions, and how one is registered.

`remember` makes the new state of a gradient and the state before; `direction` makes of the gradient and the new state
what the weight moves against. All else is the same for every rule: the sign of `maximize`, weight decay in the
gradient or beside it, the learning rate, the counter. Both are written with arithmetic operators only, so that one
formula serves NumPy arrays, tensors on a device, and numbers that know their rounding error.

    @optimizer("signum", classes=("Signum",), options=SignumOptions)
    class Signum:
        \"\"\"The sign of a running mean.\"\"\"

        @staticmethod
        def remember(gradient, state, options):
            return {"mean": options.momentum * state.get("mean", 0.0) + (1 - options.momentum) * gradient}

        @staticmethod
        def direction(gradient, state, options):
            return state["mean"] / abs(state["mean"])

A rule works on each element by itself: a part of a tensor can be done again without the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from hypocenter.catalogue import Catalogue
from hypocenter.optimizers.options import Options, number, read

State = Mapping[str, Any]
"""By torch's words. `step`: the updates that were made, this one included once it was."""

_WITHOUT_RULE = frozenset({"SparseAdam", "Adafactor", "LAMB", "FusedLamb", "OnebitAdam", "Lion"})
"""Classes that are no kind of what their name or their parent suggests."""


class Formula(Protocol):
    """The methods that a decorated class has. `implied` and `recognises` may be left out."""

    @staticmethod
    def remember(gradient: Any, state: State, options: Any) -> dict[str, Any]:
        """Return the new state after this gradient."""
        ...

    @staticmethod
    def direction(gradient: Any, state: State, options: Any) -> Any:
        """Return the direction that the weight moves against, of the gradient and the new state."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The update rule of a family of optimizers.

    Attributes:
        name: the family: "adam".
        classes: of optimizers that follow it.
        options: a dataclass made from Options.
        states: element-wise state by torch's words, with what other frameworks call it.
        formula: the two functions.
    """

    name: str
    classes: tuple[str, ...]
    options: type[Options]
    states: Mapping[str, tuple[str, ...]]
    formula: type[Formula]

    def step(self, weight: Any, gradient: Any, state: State, options: Options) -> tuple[Any, dict[str, Any]]:
        """Make one update; return the weight and the state after it.

        Args:
            weight, gradient: the gradient as the optimizer gets it: unscaled and clipped. Left as they are.
            state: before; without an entry where the optimizer has none yet.
            options: of `self.options`, as `read` makes them.
        """
        gradient = decayed(weight, gradient, options)
        new = self.remember(gradient, state, options)
        return weight + self.change(weight, self.formula.direction(gradient, new, options), options), new

    def remember(self, gradient: Any, state: State, options: Options) -> dict[str, Any]:
        """Return the new state after a gradient that has the decay in it."""
        return {**self.formula.remember(gradient, state, options), "step": state.get("step", 0) + 1}

    def change(self, weight: Any, direction: Any, options: Options) -> Any:
        """Return what is added to the weight."""
        change = -options.lr * direction
        return change - options.lr * options.weight_decay * weight if _decays(options, in_gradient=False) else change

    def read(
        self, told: Mapping[str, Any], classes: Sequence[str] = (), numbers: Callable[[Any], Any] = number
    ) -> Options | None:
        """Read the options that an optimizer tells; None where one is missing that cannot be guessed.

        Args:
            told: an entry of `param_groups`.
            classes: of the optimizer, the most special first: some decouple weight decay without a word.
            numbers: makes a number of a value, None of what is none.
        """
        implied = getattr(self.formula, "implied", None)
        return read(self.options, told, numbers, family=self.name, **(implied(classes) if implied else {}))


def decayed(weight: Any, gradient: Any, options: Options) -> Any:
    """Return the gradient to descend: negated to maximise, with L2 decay added."""
    gradient = -gradient if options.maximize else gradient
    return gradient + options.weight_decay * weight if _decays(options, in_gradient=True) else gradient


def _decays(options: Options, *, in_gradient: bool) -> bool:
    """Return whether there is decay of this kind. A number on a device is not asked whether it is 0."""
    return options.decoupled is not in_gradient and not _is_zero(options.weight_decay)


def _is_zero(number: Any) -> bool:
    return isinstance(number, (int, float)) and number == 0


def largest(one: Any, other: Any) -> Any:
    """Return the larger of two arrays, element by element, by operators alone."""
    return one * (one >= other) + other * (one < other)


RULES: Catalogue[Rule] = Catalogue("hypocenter.optimizers.rules", "hypocenter.optimizers")

F = TypeVar("F", bound=type)


def optimizer(
    name: str,
    *,
    classes: Iterable[str],
    options: type[Options] = Options,
    states: Mapping[str, Iterable[str]] | None = None,
) -> Callable[[F], F]:
    """Register a class as the rule of these classes of optimizers; its entry point is `hypocenter.optimizers`.

    Args:
        name: the family.
        classes: names without module: `Signum`.
        options: a dataclass made from Options.
        states: element-wise state by the optimizer's own word, with what other frameworks call it.
    """
    held = {word: tuple(others) for word, others in (states or {}).items()}
    known = tuple(classes)

    def rule(formula: F) -> Rule:
        return Rule(name=name, classes=known, options=options, states=held, formula=cast("type[Formula]", formula))

    return RULES.adding(name, rule)


def rule_of(classes: Sequence[str], told: Mapping[str, Any]) -> Rule | None:
    """Return the rule of an optimizer; None where it is not known here.

    Args:
        classes: of the optimizer and those that it derives from, the most special first; with or without module.
        told: an entry of its `param_groups`.
    """
    rules = RULES.entries().values()
    names = [each.rpartition(".")[2] for each in classes]
    for name in names:
        found = next((rule for rule in rules if name in rule.classes), None)
        if found is not None or name in _WITHOUT_RULE:
            return found
    return next((rule for rule in rules if getattr(rule.formula, "recognises", _never)(names, told)), None)


def words_of(*classes: str) -> dict[str, str]:
    """Map what frameworks call each state to torch's word, by the rules of these classes first.

    A word that means one thing in one optimizer and another in another is there only if a class tells which.
    """
    found: dict[str, set[str]] = {}
    own: dict[str, str] = {}
    for rule in RULES.entries().values():
        for known, others in rule.states.items():
            for word in (known, *others):
                found.setdefault(word, set()).add(known)
                if not set(classes).isdisjoint(rule.classes):
                    own[word] = known
    return {word: min(meant) for word, meant in found.items() if len(meant) == 1} | own


def _never(classes: Sequence[str], told: Mapping[str, Any]) -> bool:
    return False
