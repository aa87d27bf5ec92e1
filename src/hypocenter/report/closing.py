"""What `hypocenter run` says when the program has ended: curves, findings, what it cost, the next command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hypocenter.nouns import Diagnosis, StepRecord
from hypocenter.report import wording
from hypocenter.report.formats import terminal
from hypocenter.report.outline import Recorded
from hypocenter.report.overhead import cost
from hypocenter.report.rank_grid import RankGrid
from hypocenter.report.screen import Screen
from hypocenter.report.sparkline import sparkline

_VARIABLES = "environment"  # of what was imposed: NAME=VALUE ..., one word each
_LABEL = 11  # columns of the names before the sparklines


def closing(
    recorded: Recorded, diagnosis: Diagnosis, records: Sequence[StepRecord], screen: Screen, has_unicode: bool = True,
    grid: RankGrid | None = None,
) -> str:  # fmt: skip
    """The whole text, ready to print."""
    curves = list(_curves(records, screen.width, ascii_only=not has_unicode))
    head = "".join(f"{line}\n" for line in ["", *curves, ""]) if curves else "\n"
    lines = (*_imposed(recorded.run.imposed), cost(recorded.directory, records))
    return head + terminal.render(recorded, diagnosis, screen=screen, closing=lines, grid=grid)


def _imposed(imposed: Mapping[str, str]) -> Iterator[str]:
    """What the program was made to do: its numbers are not those of a plain run."""
    words = [text for name, text in imposed.items() if name != _VARIABLES]
    n_variables = len(imposed.get(_VARIABLES, "").split())
    if n_variables:
        words.append(f"{n_variables} environment variable{'s' if n_variables > 1 else ''} (run.json)")
    if words:
        yield f"imposed: {'; '.join(words)}"


def _curves(records: Sequence[StepRecord], width: int, *, ascii_only: bool) -> Iterator[str]:
    for name, values in (("loss", [r.loss for r in records]), ("grad norm", [r.grad_norm for r in records])):
        known = [value for value in values if value is not None]
        if known:
            room = min(60, width - _LABEL - 24)  # 24: `65504 -> 1.23e-5, 2 ranks`
            drawn = sparkline(values, max(room, 10), ascii_only=ascii_only)
            ends = f"{wording.number(known[0])} -> {wording.number(known[-1])}"
            yield f"{name:<{_LABEL}}{drawn}  {ends}"
