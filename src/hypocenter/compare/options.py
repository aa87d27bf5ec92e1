"""What a comparison of two runs may be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypocenter.compare.comparison import Matching
from hypocenter.compare.pairing.manual_map import ManualMap
from hypocenter.compare.verdict import BUDGET
from hypocenter.record.reader import RecordedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Of `compare_runs`."""

    noise: Sequence[RecordedRun] = ()  # repeats of the baseline
    budget: float = BUDGET  # up to budget × floor an error is noise
    map: ManualMap | None = None
    matching: Matching | None = None  # found before; else it is searched
    is_wanted: Callable[[int], bool] | None = None  # steps of the baseline to compare; all when not given
    site: str = ""  # shell pattern of the baseline's sites to compare
    use_values: bool = True  # of level tensors, where both sides hold them
    plugins: tuple[str, ...] = ()  # files with more fits
