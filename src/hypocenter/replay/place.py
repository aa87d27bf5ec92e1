"""Where one operator of a replay ran."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import CodeType

from hypocenter.nouns import Phase, Source
from hypocenter.tap.source import source_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one operator ran. `code` and `line` are resolved to text only when somebody asks."""

    phase: Phase
    site: str
    module: str = ""
    code: CodeType | None = None
    line: int = 0
    forward_op: str = ""  # in backward: the forward operator whose gradient this is

    def source(self) -> Source | None:
        """Return the line with its text; None if it is not known."""
        return None if self.code is None else source_of(self.code.co_filename, self.line, self.code.co_name)

    def backward(self, forward_op: str) -> Place:
        """Return the place of the gradient of an operator that ran here."""
        return replace(self, phase="backward", forward_op=forward_op)
