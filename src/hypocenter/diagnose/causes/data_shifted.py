"""A tensor of the batch holds values far larger than in any step before.

What it means
    The loss or a gradient jumped because of what the data loader gave: another scale (bytes instead of fractions, a
    normalisation left out), another field, a source that was mixed in.

How it is decided
    Walking back from what jumped, all that is larger than usual comes from this tensor of the batch, which was there
    before any operation; healthy steps that were traced before tell what is usual. No few samples make it alone.
    A jump of less than 8 times the usual (of more where fewer than 32 steps were before it) stays a note.

What to do
    Compare how this batch was made with how those before it were: its source, its normalisation, its augmentation.

When it is wrong
    When the data are meant to change here: a new stage of a curriculum.
"""

from __future__ import annotations

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.rulings import fact
from hypocenter.diagnose.spike_words import grown, is_far, jumped, sizes
from hypocenter.diagnose.verdicts import cause


@cause("data-shifted", order=42, of_spikes=True)
def decide(evidence: Evidence) -> Verdict | None:
    """It was large from the start."""
    how = grown(evidence)
    if evidence.leaf is None or evidence.leaf_kind not in ("batch", "external") or not how:
        return None
    return Verdict(
        cause="data-shifted",
        confidence="proven" if evidence.leaf_kind == "batch" and is_far(evidence) else "likely",
        title=f"{why.leaf_name(evidence)} holds values {how}",
        why=(*jumped(evidence), *sizes(evidence)),
        limit=fact(evidence, "usual_size"),
        actual=fact(evidence, "size"),
        advice="look at how this batch was made: source, normalisation, augmentation",
    )
