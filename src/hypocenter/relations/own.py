"""`@hypocenter.relation`: what must not matter to a program's own model, said by its authors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from hypocenter.manual import page_of
from hypocenter.relations.facts import CannotTell, Facts
from hypocenter.relations.parts import Whole
from hypocenter.relations.relation import RELATIONS, Relation, Trial
from hypocenter.relations.subject import Given, Subject

CODE = "HC245"
Changes = Callable[[dict[str, Tensor]], Mapping[str, Tensor] | None]
_own: dict[str, tuple[Changes, Callable[[Tensor], Tensor] | None]] = {}


def relation(
    changes: Changes | None = None, *, name: str = "", undo: Callable[[Tensor], Tensor] | None = None
) -> Changes | Callable[[Changes], Changes]:
    """Say what must not matter to a model; it is asked in each run and by `hypocenter.testing.check_relations`.

        @hypocenter.relation
        def scaled(inputs):
            return {"pixel_values": 2 * inputs["pixel_values"]}

        @hypocenter.relation(undo=lambda output: output.flip(-1))
        def mirrored(inputs):
            return {"pixel_values": inputs["pixel_values"].flip(-1)}

    Args:
        changes: takes what the model is called with, copies of tensors by the names of its arguments, and gives others
            of the same shapes for some of them; None or nothing: it cannot be asked of this batch.
        name: of the relation; "": of the function. A name that was used before is given another meaning.
        undo: makes an output for changed inputs comparable with the unchanged one. None: it must be the same.

    Returns:
        The function as it is, or a decorator.

    Raises:
        UnknownNameError: a relation of Hypocenter's has this name.
    """

    def register(changes: Changes) -> Changes:
        key = name or changes.__name__
        if key not in _own:
            asks = _asking(key)
            RELATIONS.load()
            RELATIONS.register(key, Relation(name=key, code=CODE, asks=asks, page=page_of(asks), order=50))
        _own[key] = (changes, undo)
        return changes

    return register if changes is None else register(changes)


def _asking(name: str) -> Callable[[Subject, Facts], Iterator[Trial]]:
    def ask(subject: Subject, facts: Facts) -> Iterator[Trial]:
        changes, undo = _own[name]
        given = {_argument(subject, each): each for each in subject.of_model}
        try:
            new = dict(changes({key: each.tensor.clone() for key, each in given.items()}) or {})
        except Exception as error:  # it is the user's
            raise CannotTell(f"it raised {type(error).__name__}: {str(error)[:120]}") from error
        if unknown := next((key for key in new if key not in given), ""):
            raise CannotTell(f"the model is given no {unknown}, but {', '.join(given)}")
        if not new:
            raise CannotTell("it changes nothing of this batch")

        def undone(old: Tensor, changed: Tensor) -> tuple[Tensor, Tensor] | None:
            changed = changed if undo is None else undo(changed)
            return (old, changed) if old.shape == changed.shape else None

        yield Trial(
            changed={given[key].place: value for key, value in new.items()}, parts=Whole(), aligns=undone,
            what=f"{', '.join(new)} changed as {name} says", whom="the outputs", is_located=False,
        )  # fmt: skip

    ask.__doc__ = f"{name}: of the program's own."
    return ask


def _argument(subject: Subject, given: Given) -> str:
    """Return the name of the argument of the model's forward that this input is given as."""
    position, path = given.place
    module = subject.module_at(position)
    if module is None or path[:1] not in "0123456789":
        return given.name
    names = list(inspect.signature(module.forward).parameters)
    number = path.partition("[")[0]
    return names[int(number)] if number.isdigit() and int(number) < len(names) else given.name
