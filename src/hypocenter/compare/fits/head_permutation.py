"""The same numbers in another order along heads: of attention's results, or of its weights.

What it means
    Heads, or the queries, keys and values of a fused projection, are laid out in another order on one side.

How it is decided
    Both sides hold the same numbers (norm, sum and extremes agree to rounding) in another order (the sketches differ).
    Of weights: it is sure when a transpose is impossible by shape, or when the outputs too hold the same numbers in
    another order, as they do when rows are permuted. Of values between two modules: their owner is an attention.

What to do
    Compare how both programs split and join heads; convert fused weights group by group (hypocenter weights map).

When it is wrong
    A square matrix with permuted columns looks like its transpose when no values were recorded: both are named.
"""

from __future__ import annotations

from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fit_evidence import are_queries_and_keys_shuffled, is_at_start, is_shuffled, outputs_of
from hypocenter.compare.fitting import fit

_ATTENTION = ("attn", "attention", "qkv", "q_proj", "k_proj", "v_proj", "o_proj", "head")


@fit("head-permutation")
def head_permutation(case: Case) -> Fit | None:
    """Another order of the same numbers in an attention."""
    row = case.row
    if row is None or not case.inputs_agree or not is_shuffled(row):
        return None
    if not any(word in f"{case.first.site} {row.spot.site}".lower() for word in _ATTENTION):
        return None
    if is_at_start(case):
        return _of_weight(case)
    if case.first.phase != "forward":
        return None
    return _answer(f"{row.spot.site} {row.spot.port} holds the same numbers in another order", "likely")


def _of_weight(case: Case) -> Fit | None:
    row = case.row
    card = case.card(row, side=0) if row is not None else None
    shape = card.shape if card is not None else ()
    owner = case.first.site.rpartition(".")[0]
    can_be_transposed = len(shape) == 2 and shape[0] == shape[1]
    outputs = outputs_of(case, owner)
    inputs = case.rows(phase="forward", site=owner, port="in[0]")
    is_of_rows = bool(outputs) and all(map(is_shuffled, outputs)) and bool(inputs) and all(i.agrees for i in inputs)
    if can_be_transposed and not is_of_rows:
        return None  # transposed-weight names both
    if are_queries_and_keys_shuffled(case):
        return _answer("the weights of queries and keys hold the same numbers in another order", "possible")
    return _answer(f"{case.first.site} holds the same numbers in another order", "likely")


def _answer(text: str, confidence: str) -> Fit:
    return Fit(
        name="head-permutation", cause="implementation-mismatch", explained=1.0,
        confidence=confidence, text=text,  # type: ignore[arg-type]
        fix="compare how both programs split and join heads and fused queries, keys and values",
    )  # fmt: skip
