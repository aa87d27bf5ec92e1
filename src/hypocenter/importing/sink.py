"""Where a reader of dumps puts what it finds: a recording of its own, or the session of a program that still runs."""

from __future__ import annotations

from typing import Protocol

from hypocenter.compare.weights.checkpoint import Tensor
from hypocenter.nouns import Reading, StepRecord
from hypocenter.record.facts_file import Facts


class Sink(Protocol):
    """Takes readings rank by rank, and for each rank in order of steps."""

    def problem(self, text: str) -> None:
        """Something of the dump that is damaged or was left out."""
        ...

    def note(self, text: str) -> None:
        """Something that the reader of the recording should know: what is not held, how a thing was taken."""
        ...

    def set_version(self, version: str, *, digest: str = "") -> None:
        """The version of the dump's format, and what its digests are."""
        ...

    def begin(self, rank: int, step: int) -> None:
        """What follows is of this rank and step."""
        ...

    def add(self, reading: Reading) -> None:
        """One reading of the current step."""
        ...

    def keep(self, site: str, key: str, microbatch: int, tensor: Tensor) -> None:
        """Values of the current step, that lie in a file of the dump."""
        ...

    def end(self, record: StepRecord) -> None:
        """The current step is complete."""
        ...

    def facts(self, rank: int, facts: Facts) -> None:
        """What the program of a rank is made of, as far as the dump tells."""
        ...
