"""What is told of a run, as a sentence and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hypocenter.json_answer import to_json

Kind = Literal["finding", "broke", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing that somebody wants to know at once."""

    schema: Literal["hypocenter.alert/1"] = "hypocenter.alert/1"
    kind: Kind
    run: str  # name of the run directory
    directory: str
    host: str
    title: str  # one line
    step: int | None = None
    rank: int | None = None
    code: str = ""  # of a finding: HC101
    cause: str = ""
    where: str = ""
    fix: str = ""
    command: str = ""  # to type next

    @property
    def text(self) -> str:
        """The alert as some lines of text, the title first."""
        labelled = (("where", self.where), ("cause", self.cause), ("fix", self.fix), ("see", self.command))
        lines = [f"{self.run}: {self.title}", *(f"{name}: {value}" for name, value in labelled if value)]
        return "\n".join([*lines, *([f"on: {self.host}"] if self.host else [])])

    @property
    def json(self) -> bytes:
        """The alert as JSON of `hypocenter.alert/1`."""
        return to_json(self).encode()
