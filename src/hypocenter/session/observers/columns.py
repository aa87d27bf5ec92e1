"""Samples of parameters and of what belongs to each, side by side: one array for each thing, not one for each tensor.

An audited step looks at every parameter, its gradient and its state four times. Of a model of a thousand small tensors
an object for each sample, and an operation, would take longer than the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import Any

from hypocenter.session.framework import Framework

VALUE = "value"  # the parameter itself
NUMBER = "number"  # the format of those of Python


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Copies of elements of one thing of several parameters.

    Attributes:
        values: one flat array, of the framework.
        sizes: elements of each; 0: it has no values here.
        form: the format.
    """

    values: Any
    sizes: Sequence[int]
    form: str

    def parts(self) -> list[Any]:
        """Those of each parameter."""
        return [self.values[end - n : end] for n, end in zip(self.sizes, accumulate(self.sizes), strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Parameters that hold things of the same names, formats and devices."""

    parameters: Sequence[Any]
    columns: Mapping[str, Column]

    def items(self) -> Iterator[tuple[Any, str, Any, str]]:
        """(parameter, name, elements, format) of all that has values."""
        for name, column in self.columns.items():
            for parameter, part in zip(self.parameters, column.parts(), strict=True):
                if len(part):
                    yield parameter, name, part, column.form


def blocks(
    framework: Framework, parameters: Sequence[Any], held: Sequence[Mapping[str, Any]], size: int, start: int = 0
) -> list[Block]:
    """Copies of samples of all that these hold.

    Args:
        held: of each parameter, tensors and numbers by name; what is neither is left out.
        size: at most so many elements of each tensor.
        start: another one takes other elements, where the framework can.
    """
    by_names: dict[tuple[str, ...], list[int]] = {}
    for place, each in enumerate(held):
        by_names.setdefault(tuple(each), []).append(place)
    waiting, found = list(by_names.values()), list[Block]()
    while waiting:
        places = waiting.pop(0)
        some, columns = [held[place] for place in places], dict[str, Column]()
        lists = [list(map(itemgetter(name), some)) for name in some[0]]
        for name, values, taken in zip(some[0], lists, framework.gathered(lists, size, start), strict=True):
            if taken is not None:
                form = framework.name_of(values[0].dtype) if framework.is_tensor(values[0]) else NUMBER
                columns[name] = Column(values=taken[0], sizes=taken[1], form=form)
                continue
            kinds: dict[Any, list[int]] = {}
            for place, value in zip(places, values, strict=True):
                kinds.setdefault(framework.kind(value), []).append(place)
            if kinds.keys() != {None}:  # they are not alike
                waiting += kinds.values()
                break
        else:
            found.append(Block(parameters=[parameters[place] for place in places], columns=columns))
    return found
