"""What the data of a batch were made of, over several steps: tensors, batches of a loader, and numbers they are cut at.

The tapes of a step say which operation read which tensor. Of what outlives them it is kept here what it was made of:
marks of the tensors that came from outside, of the batch that a loader has handed out, and of the places at which a
tensor was cut (`x[32:64]`). Two tensors that have a mark in common were made of the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hypocenter.tap.loader_batches import FromLoader
from hypocenter.tap.marks import NONE, Marks
from hypocenter.tap.tape import Event, Tape
from hypocenter.tap.weakly import Ref

YOUNG = 8  # looks; what is older is a source by itself, whatever it was made of: data that were prepared
MOST_EVENTS = 512  # of a step; a program that computes without modules is not followed


class Origins:
    """Remembers what tensors were made of, as long as they live.

    Args:
        loaded: what is known of the first of these tensors that a loader has handed out.
    """

    def __init__(self, loaded: Callable[[Sequence[Tensor]], FromLoader | None]) -> None:
        self._loaded = loaded
        self._known: dict[int, tuple[Ref[Tensor], Marks, int]] = {}  # and the look until which that counts
        self._n_marks = self._n_looks = 0

    def follow(self, tape: Tape) -> dict[int, Marks]:
        """Return what each slot of a tape was made of, and remember it of the tensors in the slots."""
        found: dict[int, Marks] = {}
        self._n_looks += 1
        if len(tape.events) > MOST_EVENTS:
            return found
        for event in tape.events:
            marks = frozenset[Hashable](_places(event)).union(
                *(found.get(slot, NONE) for slot in event.needs), *(marks for _, marks in self.given(tape, event))
            )
            found.update(dict.fromkeys(event.slots, marks))
        for slot, tensor in tape.living():
            self._known[id(tensor)] = Ref(tensor), found.get(slot, NONE), self._n_looks + YOUNG
        self._known = {key: entry for key, entry in self._known.items() if entry[0]() is not None}
        return found

    def given(self, tape: Tape, event: Event) -> Iterator[tuple[Tensor, Marks]]:
        """Yield (tensor, what it was made of) for what an event was given from outside its tape, but for parameters."""
        for external in event.externals:
            originals = tape.originals(external.tensor) or [external.tensor]
            if not any(each.requires_grad or isinstance(each, torch.nn.Parameter) for each in originals):
                yield originals[0], NONE.union(*map(self._of, originals))

    def _of(self, tensor: Tensor) -> Marks:
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and self._n_looks <= known[2]:
            return known[1]
        loaded = self._loaded([tensor])
        self._n_marks += 1
        marks: Marks = frozenset([("batch", loaded.batch) if loaded is not None else self._n_marks])
        self._known[id(tensor)] = Ref(tensor), marks, sys.maxsize
        return marks


def _places(event: Event) -> Iterable[Hashable]:
    """Yield the numbers of the program at which an event cuts a tensor."""
    if getattr(event.function, "__name__", "") == "__getitem__" and len(event.args) > 1:
        places: Any = event.args[1]
        for each in places if isinstance(places, tuple) else (places,):
            if isinstance(each, int):
                yield "at", each
            elif isinstance(each, slice) and not (each.start is None and each.stop is None):
                yield "at", each.start, each.stop
