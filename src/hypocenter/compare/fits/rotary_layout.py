"""Rotary embedding pairs the channels of a head in another way: halves against neighbours.

What it means
    One side turns channel i with channel i + d/2 (HF Llama, NeoX), the other i with i + 1 (Meta's weights, GPT-J,
    Megatron with rotary_interleaved). Weights made for one are wrong in the other, though each loads without a word.

How it is decided
    A setting of the attention or of the rotary module with "interleave" in its name differs; or the table of angles
    holds the same numbers on both sides in another order; or of one attention the weights of queries and keys hold the
    same numbers in another order, those of values do not differ, and the program has rotary embeddings.

What to do
    Permute the rows of q and k heads when converting, or set the layout (rotary_interleaved, is_neox_style).

When it is wrong
    When queries and keys were permuted for another reason, such as another order of heads in both.
"""

from __future__ import annotations

from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fit_evidence import (
    are_queries_and_keys_shuffled,
    attributes_apart,
    is_at_start,
    is_shuffled,
    say,
)
from hypocenter.compare.fitting import fit

_ROTARY = ("rotary", "rope")


@fit("rotary-layout")
def rotary_layout(case: Case) -> Fit | None:
    """Halves on one side, neighbours on the other."""
    if is_at_start(case):
        return _of_weights(case)
    row = case.row
    if row is None or case.first.phase != "forward" or not case.inputs_agree:
        return None
    found = attributes_apart(case, ("interleave", "neox_style"))
    if found:
        name, (mine, other) = next(iter(sorted(found.items())))
        return _answer(f"{name} is {say(mine)} in the baseline and {say(other)} in the candidate", "proven")
    if _has(case.first.site, _ROTARY) and is_shuffled(row):
        return _answer("the table of angles holds the same numbers in another order", "likely")
    return None


def _of_weights(case: Case) -> Fit | None:
    if not _has_rotary(case) or not are_queries_and_keys_shuffled(case):
        return None
    return _answer("the weights of queries and keys hold the same numbers in another order, those of values agree",
                   "likely")  # fmt: skip


def _has_rotary(case: Case) -> bool:
    facts = case.facts[0]
    if facts is None:
        return any(_has(row.spot.site, _ROTARY) for row in case.step)
    return any(_has(f"{one.path} {one.kind} {' '.join(one.attributes)}", _ROTARY) for one in facts.modules)


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text.lower() for word in words)


def _answer(text: str, confidence: str) -> Fit:
    return Fit(
        name="rotary-layout", cause="config-mismatch", explained=1.0, confidence=confidence,  # type: ignore[arg-type]
        text=f"rotary embeddings are laid out in another way: {text}",
        fix="use one layout (halves or neighbours) on both sides, or permute the rows of q and k when converting",
    )  # fmt: skip
