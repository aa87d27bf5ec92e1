"""Places that draw random numbers: two runs are apart there without anything being wrong."""

from __future__ import annotations

import numpy as np

from hypocenter.compare.inputs import Inputs
from hypocenter.compare.judged import Judged
from hypocenter.compare.rows import StepRows
from hypocenter.record.facts_file import Facts, ModuleFacts

_WORD = "drop"  # of classes and attributes: Dropout, dropout, attn_pdrop, drop_path


def draws_random_numbers(judged: Judged, at: int, inputs: Inputs, facts: tuple[Facts | None, Facts | None]) -> bool:
    """Whether the code that computed row `at` drops values at random on both sides."""
    spot = judged.spots[at]
    if spot.phase != "forward":
        return False
    module = judged.modules.get(int(judged.aligned.pair[at]), "")
    if _WORD in module.lower() and not inputs.is_between:
        return _changes(judged, at, judged.aligned.baseline) and _changes(judged, at, judged.aligned.candidate)
    pair = judged.pairs[int(judged.aligned.pair[at])]
    rates = _rate(facts[0], inputs.owner), _rate(facts[1], _of_candidate(pair.candidate[0].site, inputs))
    return rates[0] == rates[1] and rates[0] > 0.0


def _changes(judged: Judged, at: int, rows: StepRows) -> bool:
    """Whether the module's output is not its input."""
    spot = judged.spots[at]
    entered = (judged.site == spot.site) & (judged.call == spot.call) & (judged.port == "in[0]")
    entered &= (judged.phase == "forward") & (rows.microbatch == rows.microbatch[at])
    found = np.flatnonzero(entered)
    return len(found) > 0 and rows.values["sumsq"][found[0]] != rows.values["sumsq"][at]


def _of_candidate(site: str, inputs: Inputs) -> str:
    return inputs.owner if not inputs.is_between else site.rpartition(".")[0]


def _rate(facts: Facts | None, site: str) -> float:
    """The largest rate that the module's own attributes name; 0 when it does not train, or nothing is known."""
    module = next((one for one in facts.modules if one.path == site), None) if facts is not None else None
    return max(_rates(module), default=0.0)


def _rates(module: ModuleFacts | None) -> list[float]:
    if module is None or not module.training:
        return []
    named = [value for name, value in module.attributes.items() if _WORD in name.lower()]
    return [float(v) for v in named if isinstance(v, (int, float)) and not isinstance(v, bool) and 0.0 < v < 1.0]
