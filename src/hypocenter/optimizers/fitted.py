"""What class of rule an optimizer follows that has no formula here: fits to its first steps, then the same for all.

A rule of people's own is mostly one of few: state moves by multiples of itself and of the gradient, or its square; the
weight moves by multiples of itself, the gradient, a state, a sign, or one of them over the root of a state. The
multiples (learning rate, momentum, betas, decay, corrections of the bias) may change from step to step, but within a
step they are the same for all parameters of a group. So a form is a list of columns, its multiples are a least-squares
fit over all parameters together, and what is judged is whether one parameter leaves what the others do.

A form counts once it has fitted SETTLED looks in a row. Where no form does, or it begins to fit fewer than MOST_OF the
parameters, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hypocenter.optimizers.rounded import Array

SETTLED = 3  # looks
MOST_OF = 2 / 3  # of the parameters of a group
PARTS = 4
NEAR = 1e-3  # of a change: a fit
FAR = 0.02  # of a change: no fit; what lies between says nothing
ROUNDINGS = 16  # of the values around a change
_CLEAR = 1e-4  # of the largest: a sign that rounding does not turn
_ABOVE_EPS = 1e4  # times eps: roots of which eps is no part that matters
VALUE = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One parameter around a step, flat, in float64. State that was not there before counts as 0."""

    value: Array
    gradient: Array
    state: Mapping[str, Array]
    after: Array
    new: Mapping[str, Array]
    eps: float  # of the coarsest format involved


@dataclass(frozen=True, slots=True)
class Form:
    """One class of rule for one target, `value` or a state.

    Attributes:
        columns: names of what is added up, each with a multiple of its own.
    """

    columns: tuple[str, ...]

    def __str__(self) -> str:
        return " + ".join(f"{letter}*{column}" for letter, column in zip("abcd", self.columns, strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a settled form says of one target at one step.

    Attributes:
        form: of the rule.
        apart: of each parameter, the part of its change that is not by the rule; NaN: its change is lost in rounding.
        factor: of each, how many times the change of the rule was made; NaN: it is no multiple of it.
    """

    form: Form
    apart: Sequence[float]
    factor: Sequence[float]


@dataclass(slots=True)
class _Target:
    """The forms that have fitted all looks so far at one target, simplest first; None: not looked at yet."""

    left: list[Form] | None = None
    n_looks: int = 0


@dataclass(slots=True)
class Fits:
    """What is known of the update rule of one group of an optimizer."""

    targets: dict[str, _Target] = field(default_factory=dict)

    def look(self, moved: Sequence[Moved], numbers: Sequence[float], eps: float) -> dict[str, Look]:
        """Fit the forms to one step of a group's parameters; return a look for each target whose form is settled.

        Args:
            moved: parameters with the same state.
            numbers: between 0 and 1, of the group's options: what state and gradient may be mixed by.
            eps: the group's, 0 if there is none.
        """
        found: dict[str, Look] = {}
        for name in (VALUE, *sorted(moved[0].new)):
            target = self.targets.setdefault(name, _Target())
            if target.left is None:
                target.left = list(_forms(name, sorted(moved[0].new), numbers))
            is_settled = target.n_looks >= SETTLED
            fits: list[tuple[Form, Look]] = []
            for form in target.left:
                look = _fit(form, name, moved, eps)
                if look is not None:
                    fits.append((form, look))
                if is_settled and fits:
                    break
            if is_settled and fits:
                found[name] = fits[0][1]
            elif fits:
                target.left, target.n_looks = [form for form, _ in fits], target.n_looks + 1
            else:
                target.left, target.n_looks = None, 0
        return found


def _forms(target: str, states: Sequence[str], numbers: Sequence[float]) -> Iterator[Form]:
    """Yield the forms that a rule for this target may have, simplest first."""
    if target != VALUE:
        for gradient in (("g",), ("g^2",), ("|g|",), ("g", "w"), ("g^2", "g*w", "w^2")):
            yield Form((target, *gradient))
        return
    towards: list[tuple[str, ...]] = [("g",), *((s,) for s in states), ("sign(g)",), *((f"sign({s})",) for s in states)]
    towards += [(s, "g") for s in states]
    towards += [(f"sign({beta:g}*{s}+g)",) for s in states for beta in numbers]
    roots = [(over, root) for root in states for over in (*states, "g") if over != root]
    towards += [(f"{over}/root({root})",) for over, root in roots]
    towards += [(f"{s}/root({root})", f"g/root({root})") for s, root in roots if s != "g"]
    for each in towards:
        yield Form(each)
        yield Form((*each, "w"))


def _fit(form: Form, target: str, moved: Sequence[Moved], eps: float) -> Look | None:
    """Fit the form with multiples that most parameters share; return None where they share none."""
    sides = [_sides(form, target, each, eps) for each in moved]
    allowed = np.array([_allowed(target, each) for each in moved])
    done = np.array([float(np.linalg.norm(goal)) for _, goal in sides])
    kept = [i for i, (columns, _) in enumerate(sides) if columns.any() and allowed[i] < FAR * done[i]]
    best: list[int] = []
    for some in [kept, *(kept[part::PARTS] for part in range(PARTS))]:  # those of one part may all be by the rule
        if some and len(best) < len(kept):
            made, rest, sizes = _shared(sides, some, done)
            best = max(best, [i for i in kept if rest[i] <= NEAR * sizes[i] + allowed[i]], key=len)
    if len(best) < max(2, MOST_OF * len(kept)):
        return None
    made, rest, sizes = _shared(sides, best, done)
    is_clear = allowed < FAR * sizes  # rounding does not hide what happened
    apart = np.maximum(0.0, rest - allowed) / np.maximum(sizes, np.finfo(float).tiny)
    return Look(
        form=form,
        apart=[float(part) if clear else np.nan for part, clear in zip(apart, is_clear, strict=True)],
        factor=[_factor(each, goal) for each, (_, goal) in zip(made, sides, strict=True)],
    )


def _shared(sides: Sequence[tuple[Array, Array]], some: Sequence[int], done: Array) -> tuple[list[Array], Array, Array]:
    """Fit multiples to some parameters; return what they make of each, how far that is off, and the larger norm."""
    scaled = [tuple(side / np.linalg.norm(sides[i][0]) for side in sides[i]) for i in some]
    columns, goals = (np.concatenate([each[part] for each in scaled]) for part in (0, 1))
    weights = np.linalg.lstsq(columns, goals, rcond=None)[0]
    made = [columns @ weights for columns, _ in sides]
    rest = np.array([float(np.linalg.norm(goal - each)) for each, (_, goal) in zip(made, sides, strict=True)])
    return made, rest, np.maximum(done, [float(np.linalg.norm(each)) for each in made])


def _sides(form: Form, target: str, moved: Moved, eps: float) -> tuple[Array, Array]:
    """Return columns [n, number of columns] and the change they should make [n], of elements that can be judged."""
    columns, fine = [], np.ones(moved.value.shape, bool)
    for name in form.columns:
        column, is_fine = _column(name, target, moved, eps)
        columns.append(column)
        fine &= is_fine
    before, after = _around(target, moved)
    goal = after - before
    return np.stack(columns, axis=1)[fine], goal[fine]


def _column(name: str, target: str, moved: Moved, eps: float) -> tuple[Array, Any]:
    """Return the values of a column, and at which elements they can be relied on."""
    gradient, value = moved.gradient, moved.value
    plain = {"g": gradient, "w": value, "g^2": gradient**2, "|g|": np.abs(gradient), "g*w": gradient * value,
             "w^2": value**2}  # fmt: skip
    if name in plain:
        return plain[name], True
    if name == target:
        return moved.state.get(name, np.zeros_like(value)), True
    if name.startswith("sign("):
        inside = name[5:-1]
        if "*" in inside:
            beta, state = float(inside.partition("*")[0]), inside.partition("*")[2].removesuffix("+g")
            mixed = beta * moved.state.get(state, np.zeros_like(value)) + (1 - beta) * gradient
        else:
            mixed = gradient if inside == "g" else moved.new[inside]
        size = np.abs(mixed)
        return np.sign(mixed), (size > _CLEAR * size.max(initial=0.0)) | (size == 0)
    over, slash, root = name.partition("/root(")
    if slash:
        below = np.sqrt(np.maximum(moved.new[root[:-1]], 0.0))
        is_fine = (below > _ABOVE_EPS * eps) & (below > 0)
        above = gradient if over == "g" else moved.new[over]
        return above / np.where(is_fine, below + eps, 1.0), is_fine
    return moved.new[name], True


def _around(target: str, moved: Moved) -> tuple[Array, Array]:
    """Return the weight or a state, before and after the step."""
    if target == VALUE:
        return moved.value, moved.after
    return moved.state.get(target, np.zeros_like(moved.value)), moved.new[target]


def _allowed(target: str, moved: Moved) -> float:
    """Return the norm of what rounding may have done to a parameter."""
    before, after = _around(target, moved)
    return ROUNDINGS * moved.eps * float(np.linalg.norm(np.abs(before) + np.abs(after)))


def _factor(meant: Array, done: Array) -> float:
    size = float(meant @ meant)
    factor = float(done @ meant) / size if size > 0 else np.nan
    return factor if np.linalg.norm(done - factor * meant) <= FAR * np.linalg.norm(done) else np.nan
