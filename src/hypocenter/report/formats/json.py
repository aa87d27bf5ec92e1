"""diagnosis.json (`hypocenter.diagnosis/1`), the contract that CI systems and other tools read."""

from __future__ import annotations

from hypocenter.json_answer import to_json
from hypocenter.nouns import Diagnosis
from hypocenter.report.outline import Recorded

suffix = ".json"


def render(recorded: Recorded, diagnosis: Diagnosis) -> str:
    """Return the diagnosis as JSON, ending in a newline."""
    return to_json(diagnosis)
