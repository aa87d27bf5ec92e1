"""What to change, from what was tried in replays; verified remedies first."""

from __future__ import annotations

from hypocenter.diagnose.evidence import Cure, Evidence
from hypocenter.nouns import Remedy
from hypocenter.replay import samples
from hypocenter.replay.remedies.fp32_island import advice


def propose(evidence: Evidence) -> tuple[Remedy, ...]:
    """Remedies for what the evidence shows.

    Args:
        evidence: with samples and the search for a cure filled in.
    """
    found: list[Remedy] = []
    if evidence.cure is not None:
        found += _island(evidence, evidence.cure)
    left_out = samples.remedy(evidence)
    if left_out is not None:
        found.append(left_out)
    return tuple(sorted(found, key=lambda remedy: not remedy.verified))


def _island(evidence: Evidence, cure: Cure) -> list[Remedy]:
    if cure.verified:
        return [Remedy(action=cure.action, targets=cure.targets, verified=True, text=_in_words(cure))]
    if cure.status != "cannot-tell" or evidence.origin is None or not evidence.float64.finite:
        return []
    site = evidence.origin.site
    return [Remedy(action=cure.action, targets=(site,), verified=False, text=advice(site, cast_back=False))]


def _in_words(cure: Cure) -> str:
    if not cure.api and cure.lines:
        return f"compute line {cure.lines[0].line} in float32: cast its operands with .float()"
    where = ", ".join(target or "the model" for target in cure.targets)
    return advice(where, cast_back=cure.cast_back)
