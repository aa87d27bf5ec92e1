"""Settings of both optimizers, parameter by parameter: what weight decay is given to which, and everything else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypocenter.align.context import is_weight
from hypocenter.compare.comparison import Matching
from hypocenter.compare.fit_evidence import say
from hypocenter.record.reader import RecordedRun

_FLOAT32 = 2.0**-22  # relative: a framework may keep settings in float32
_WITHOUT_EFFECT = frozenset({  # how it is computed, not what; and what is compared as a curve
    "foreach", "fused", "capturable", "differentiable", "lr", "initial_lr", "name", "lr_mult", "wd_mult",
    "is_expert_parallel",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDifference:
    """A setting of the optimizer that differs between the sides for some parameters."""

    option: str
    baseline: str
    candidate: str
    parameters: tuple[str, ...]  # in the baseline's names
    n_all: int  # parameters that both optimizers have

    def plain(self) -> dict[str, object]:
        """Return the fields as a dictionary for the page."""
        return {
            "option": self.option, "baseline": self.baseline, "candidate": self.candidate,
            "parameters": list(self.parameters),
        }  # fmt: skip


def group_differences(baseline: RecordedRun, candidate: RecordedRun, matching: Matching) -> list[GroupDifference]:
    """Return settings that differ, those of most parameters first. Empty too where optimizers were not recorded."""
    mine, other = _settings(baseline), _settings(candidate)
    names = _partners(matching, mine, other)
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, partner in names.items():
        left, right = mine[name], other[partner]
        for option in left.keys() & right.keys() - _WITHOUT_EFFECT:
            if not _same(left[option], right[option]):
                found.setdefault((option, say(left[option]), say(right[option])), []).append(name)
    made = [
        GroupDifference(option=option, baseline=a, candidate=b, parameters=tuple(sorted_names), n_all=len(names))
        for (option, a, b), sorted_names in found.items()
    ]
    return sorted(made, key=lambda one: (one.option != "kind", -len(one.parameters), one.option))


def _settings(run: RecordedRun) -> dict[str, Mapping[str, Any]]:
    facts = run.facts()
    return {
        name: {**group.options, "kind": optimizer.kind}
        for optimizer in (facts.optimizers if facts is not None else ())
        for group in optimizer.groups
        for name in group.parameters
    }


def _partners(matching: Matching, mine: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, str]:
    """Map the baseline's name of each parameter that both optimizers have to the candidate's."""
    pairs = {
        spot.site: pair.candidate[min(at, len(pair.candidate) - 1)].site
        for pair in matching.pairs
        for at, spot in enumerate(pair.baseline)
        if is_weight(spot)
    }
    return {name: pairs[name] for name in mine if name in pairs and pairs[name] in other}


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=_FLOAT32)
    return left == right
