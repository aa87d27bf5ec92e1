"""`--initial-weights PATH`, what needs no framework: which value each parameter gets, and what is said of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from hypocenter.compare.pairing.manual_map import ManualMap, read_map
from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.compare.weights.imposing import Given, Wanted, given_to, left_over

OPTION = "--initial-weights"


class WeightsFrom:
    """A checkpoint that the models of a program get their values from.

    Args:
        path: of the checkpoint, or of a recording that has initial weights.
        map_path: of a map file, or None.
        told: a line for run.json.

    Attributes:
        is_part: a model is a part of what the checkpoint is of: much may be left over.

    Raises:
        HypocenterError: the checkpoint, or the map, cannot be read.
    """

    def __init__(
        self, path: str, map_path: str | None, *, warn: Callable[[str], None], told: Callable[[str], None]
    ) -> None:
        self.source = read_checkpoint(path)
        self.is_part = False
        self._manual: ManualMap | None = read_map(Path(map_path)) if map_path else None
        self._warn, self._told = warn, told
        self._unused: set[str] | None = None

    def to(self, wanted: Sequence[Wanted], *, buffers: Iterable[str], settings: Mapping[str, int]) -> Given:
        """Find a value of the checkpoint for every parameter.

        Args:
            buffers: names of the model's: the checkpoint may have them.
            settings: heads and groups of the model.

        Raises:
            HypocenterError: not every parameter can be given a value.
        """
        given = given_to(
            wanted, self.source, buffers=buffers, settings=settings, manual=self._manual, is_part=self.is_part
        )
        unused = set(given.unused)
        self._unused = unused if self._unused is None else self._unused & unused
        return given

    def nothing_is_left(self) -> None:
        """Check that no weights are left over, as all models that a micro-batch calls have been called.

        Raises:
            CheckpointError: weights are left over.
        """
        if self._unused and not self.is_part:
            raise left_over(sorted(self._unused), self.source.path)
        self._unused = None

    def say(self, given: Given, wanted: Sequence[Wanted], n_copies: int) -> None:
        """Say that the weights are in, where they came from, and which were cast to another format.

        Args:
            n_copies: float32 copies of an optimizer that were made again.
        """
        pairs = [(given.views[one.names[0]].dtype, one.dtype) for one in wanted]
        casts = Counter(f"{there} to {here}" for there, here in pairs if there != here)
        words = f"initial weights of {len(wanted)} parameters from {self.source.path} ({given.how})"
        words += "".join(f"; {count} cast from {text}" for text, count in casts.items())
        words += f"; {n_copies} float32 copies of an optimizer made again" if n_copies else ""
        self._told(words)
        for text in given.notes:
            self._warn(f"initial weights: {text}")
