"""What a kernel that nobody traced may have read: the tensors that were at hand where its result was made room for."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from hypocenter.optrace import Edge
from hypocenter.tap.frame_variables import variables_of
from hypocenter.tap.op_tensors import storage_key, tensors_among
from hypocenter.tap.source import is_library
from hypocenter.tap.weakly import Ref

_FRAMES = 3  # of the user's, from the innermost one outwards
_MOST = 256  # variables of one frame that are looked at
Known = Callable[[torch.Tensor], Edge | None]


class AtHand:
    """Remembers, per storage that was made room for, which tensors were variables there."""

    def __init__(self) -> None:
        self._bad: dict[int, list[Edge]] = {}
        self._unknown: dict[int, list[Ref[torch.Tensor]]] = {}

    def note(self, made: Sequence[torch.Tensor], known: Known) -> None:
        """Remember which tensors are variables here, where room was made for these results.

        Args:
            known: what the trace knows of a tensor; None: it has not met it.
        """
        found = [(tensor, known(tensor)) for tensor in _variables(sys._getframe(1))]
        bad = [edge for _, edge in found if edge is not None and edge.real]
        unknown = [Ref(tensor) for tensor, edge in found if edge is None]
        for key in {storage_key(tensor) for tensor in made} - {0}:
            self._bad[key], self._unknown[key] = bad, unknown

    def of(self, tensor: torch.Tensor, known: Known, look: Callable[[torch.Tensor], Edge]) -> list[Edge]:
        """Return the bad ones among what was at hand where room was made, and what is at hand here, where it is read.

        Args:
            look: tells of a tensor that the trace has not met.
        """
        key = storage_key(tensor)
        there = [each for ref in self._unknown.get(key, ()) if (each := ref()) is not None]
        here = [each for each in _variables(sys._getframe(1)) if storage_key(each) != key]
        edges = [*self._bad.get(key, ()), *(known(each) or look(each) for each in (*there, *here))]
        return list({edge.producer: edge for edge in edges if edge.real}.values())


def _variables(frame: FrameType | None) -> Iterator[torch.Tensor]:
    """Yield tensors that are variables of the user's innermost frames, and those of modules among them."""
    n_frames = 0
    while frame is not None and n_frames < _FRAMES:
        if not is_library(frame.f_code.co_filename):
            n_frames += 1
            if frame.f_code.co_name != "<module>":
                for value in itertools.islice(variables_of(frame).values(), _MOST):
                    yield from _tensors_in(value)
        frame = frame.f_back


def _tensors_in(value: Any) -> list[torch.Tensor]:
    found: list[Any] = []
    if isinstance(value, torch.nn.Module):
        with contextlib.suppress(AttributeError):  # one whose constructor has not run
            found = [*value._parameters.values(), *value._buffers.values()]
    elif isinstance(value, (torch.Tensor, list, tuple)):
        found = tensors_among(value)
    return [each for each in found if type(each) in (torch.Tensor, torch.nn.Parameter) and storage_key(each)]
