"""The law of terms: what comes to the loss from a parameter goes back to it as a gradient. For HC233.

Programs cut gradients on purpose, and compute other things at other steps. So one step is held against all that were
looked at before: it is off where as much as ever comes to the loss from parameters, but more of it than ever without
its gradient, and less than ever with it. A term that is added every few steps with a target of its own breaks neither
bound, and one that is left out computes less.

One thing is told of the start too: a parameter that an optimizer holds, whose values come to the loss at each of the
first steps that are looked at, and that gets no gradient at any of them. The program says both, so it is a note.

And one of each step by itself: a term that is made of gradients and brings none (`create_graph` was left out) is a
constant that was added to the loss. A term that is made of indices and truth values alone, at each of the first steps
that are looked at, is a note: some add a count to what they show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypocenter.detect import law_rows as law
from hypocenter.nouns import Reading, replace
from hypocenter.session.events import Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.paths import Paths

LOOKS = 4  # audited steps, before one that is held against them
MOST_SHAPES = 8  # new ones after the first looks: each step of such a program does something else


@dataclass(slots=True)
class _Seen:
    """What the steps that were looked at have shown of one optimizer."""

    n_looks: int = 0
    fewest_values: int = 0
    fewest_gradients: int = 0
    most_cuts: int = 0
    cuts: set[tuple[str, str]] = field(default_factory=set)
    never: set[int] = field(default_factory=set)  # numbers of parameters without a gradient so far
    is_constant_told: bool = False
    n_counted: int = 0  # looks, from the first on, with a term that is made of counts
    shapes: set[int] = field(default_factory=set)  # of the graphs that were followed
    n_new_shapes: int = 0  # after the first looks


class Ways:
    """Remembers how much came to the loss, and how much of it with a gradient.

    Args:
        label: the user's name of a parameter.

    Attributes:
        are_followed: until that was found to be impossible.
    """

    def __init__(self, label: Callable[[Any], str]) -> None:
        self.are_followed = True
        self._label = label
        self._seen: dict[int, _Seen] = {}  # by id of the first parameter

    def may_be_known(self, update: Update) -> bool:
        """Return whether the graph of this step may be one that was followed before."""
        seen = self._seen.get(id(update.parameters[0])) if update.parameters else None
        return self.are_followed and seen is not None and seen.n_looks >= LOOKS and seen.n_new_shapes < MOST_SHAPES

    def is_as_before(self, update: Update, shape: int | None) -> bool:
        """Return whether a graph of this shape was followed before: then as much comes to the loss as it did then."""
        seen = self._seen[id(update.parameters[0])]
        is_known = shape in seen.shapes
        seen.n_looks += is_known
        seen.n_new_shapes += not is_known
        return is_known

    def row(
        self, update: Update, paths: Paths | None, parameters: Sequence[Any], shape: int | None = None
    ) -> Reading | None:
        """Return the row that HC233 reads, if this step is off.

        Args:
            paths: of the last micro-batch.
            parameters: that were followed.
            shape: of the graph of the last micro-batch, where it has one.
        """
        if paths is None or not update.parameters:
            return None
        seen, n_cuts = self._seen.setdefault(id(update.parameters[0]), _Seen()), len(paths.cuts)
        is_off = (
            seen.n_looks >= LOOKS
            and n_cuts > seen.most_cuts
            and paths.n_gradients < seen.fewest_gradients
            and paths.n_values >= seen.fewest_values
        )
        new = [each for each in paths.cuts if each not in seen.cuts] or list(paths.cuts)
        row = None
        if (taken := paths.constant) is not None and not seen.is_constant_told:
            seen.is_constant_told = True
            row = number_row(law.SITE, law.CONSTANT, update.step, 0, 1.0)
            row = replace(row, module=taken.site, source=taken.line)
        elif is_off and paths.cut_off:
            first = self._label(parameters[paths.cut_off[0]])
            row = number_row(first, law.CUT_OFF, update.step, 0, len(paths.cut_off), call=seen.n_looks)
            row = replace(row, names=tuple(dict.fromkeys(site for site, _ in new)), op=new[0][1])
        seen.n_counted += paths.counted is not None
        if row is None and paths.counted is not None and seen.n_counted == LOOKS == seen.n_looks + 1:
            row = number_row(law.SITE, law.COUNTED, update.step, 0, LOOKS)
            row = replace(row, module=paths.counted.site, source=paths.counted.line, op=paths.counted.name)
        if seen.n_looks < LOOKS and row is None:
            row = self._never(update, seen, paths, parameters)
        seen.fewest_values = min(seen.fewest_values or paths.n_values, paths.n_values)
        seen.fewest_gradients = min(seen.fewest_gradients or paths.n_gradients, paths.n_gradients)
        seen.most_cuts, seen.n_looks = max(seen.most_cuts, n_cuts), seen.n_looks + 1
        seen.cuts.update(paths.cuts)
        if shape is not None:
            seen.shapes.add(shape)
        return row

    def _never(self, update: Update, seen: _Seen, paths: Paths, parameters: Sequence[Any]) -> Reading | None:
        """Return a row of what was cut off at each of the first looks, and had no gradient elsewhere; else None."""
        norms = update.check.grad_norms
        given = {id(p) for p, _ in update.gradients if norms.get(self._label(p), 1.0)}  # what is all 0 is none
        without = {n for n in paths.cut_off if n not in paths.reached and id(parameters[n]) not in given}
        seen.never = without if seen.n_looks == 0 else seen.never & without
        if seen.n_looks + 1 < LOOKS or not seen.never:
            return None
        first = self._label(parameters[min(seen.never)])
        row = number_row(first, law.NEVER, update.step, 0, len(seen.never), call=LOOKS)
        return replace(row, names=tuple(dict.fromkeys(site for site, _ in paths.cuts)), op=paths.cuts[0][1])
