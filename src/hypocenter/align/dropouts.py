"""Which modules drop values while they train."""

from __future__ import annotations

from hypocenter.record.facts_file import ModuleFacts
from hypocenter.record.reader import RecordedRun


def dropouts(run: RecordedRun) -> dict[str, float]:
    """Path of each module that drops values -> at which rate. Empty as well where the recording has no facts."""
    facts = run.facts()
    found = ((module.path, _rate(module)) for module in (facts.modules if facts is not None else ()))
    return {path: rate for path, rate in found if rate > 0}


def _rate(module: ModuleFacts) -> float:
    names = [name for name in module.attributes if "drop" in name.lower()]
    names += ["p"] if "drop" in module.kind.lower() else []
    rates = [module.attributes.get(name) for name in names]
    return max(
        (float(r) for r in rates if isinstance(r, (int, float)) and not isinstance(r, bool) and r < 1), default=0.0
    )
