"""What a page shows beside the answer itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypocenter.compare.curves.of_runs import NamedCurves
from hypocenter.compare.walk import Scene
from hypocenter.record.facts_file import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """All of it may be missing: the page then shows less."""

    scene: Scene = field(default_factory=Scene)
    facts: tuple[Facts | None, Facts | None] = (None, None)  # of baseline and candidate
    curves: tuple[NamedCurves, ...] = ()
    command: str = ""  # that makes the page again
