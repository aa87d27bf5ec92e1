"""One side has no bias, or a bias that was never loaded.

What it means
    Qwen has biases on queries, keys and values and Llama has none; code or a checkpoint of the other kind drops them.

How it is decided
    The first module that differs has a bias on one side only, and its outputs differ by the same in every row, as their
    sketches show, and by as much as the bias is long; or, where they cannot show it, the square of the difference is
    the number of rows times the square of the bias, within the error of the estimate. Or: the bias is zero on one side
    from the start and not on the other.

What to do
    Give the module its bias (attention_bias, add_qkv_bias), and load it.

When it is wrong
    Never seen so; a second difference in the same module makes the sizes disagree, and then nothing is said.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hypocenter.compare.case import Case, PairedRow
from hypocenter.compare.comparison import Fit, SiteCard
from hypocenter.compare.fit_evidence import is_at_start, parameter_card, squared_difference
from hypocenter.compare.fitting import fit
from hypocenter.summary.sketch import ROW_SEED, WIDTH, K, signs

_SLACK = 1.1  # times the interval of the estimate: the bias is as of the first step that recorded it
Sketched = NDArray[np.float64]
_REST = 0.05  # of the difference of the outputs: rounding, which is far less
_ESTIMATE = 5.0  # times: how far an estimate of a square from 16 numbers may be off


@fit("missing-bias")
def missing_bias(case: Case) -> Fit | None:
    """A bias that only one side adds."""
    row = case.row
    if row is None:
        return None
    if is_at_start(case):
        sizes = row.baseline.absmax, row.candidate.absmax
        if not case.first.site.endswith("bias") or all(sizes) or not any(sizes):
            return None
        side = "candidate" if not sizes[1] else "baseline"
        return _answer(f"{case.first.site} is zero in the {side}", side, 1.0)
    return _unmatched(case) if case.first.phase == "forward" and case.inputs_agree else None


def _unmatched(case: Case) -> Fit | None:
    row = case.row
    names = f"{case.first.site}.bias", f"{case.first.candidate_site}.bias"
    cards = [parameter_card(case, name, side=side) for side, name in enumerate(names)]
    known = [card for card in cards if card is not None]
    if row is None or len(known) != 1 or not known[0].n:
        return None
    lacking = 1 if cards[1] is None else 0
    if _is_within(case, names[lacking].removesuffix("bias"), known[0].n, lacking):
        return None
    side = ("baseline", "candidate")[lacking]
    added = _added_to_every_row(case, row)
    if added is not None:
        values, rest = added
        if rest > _REST or not _is_bias(values if side == "baseline" else -values, known[0]):
            return None
        return _answer(f"{case.first.site} has no bias in the {side}", side, 1.0 - rest)
    wanted = row.baseline.n / known[0].n * known[0].sumsq
    _, low, high = squared_difference(row)
    if not low / _SLACK <= wanted <= high * _SLACK:
        return None
    return _answer(f"{case.first.site} has no bias in the {side}", side, 1.0)


def _added_to_every_row(case: Case, row: PairedRow) -> tuple[Sketched, float] | None:
    """Return the sketch Cᵀv of what the candidate adds to each row alike, and the share of other differences.

    The sketch of a matrix whose rows are all v is (Rᵀ1)(Cᵀv)ᵀ, and Rᵀ1 is known.
    """
    card = case.card(row, side=0)
    sketches = row.baseline.sketch, row.candidate.sketch
    if card is None or len(card.shape) < 2 or row.pair.layout.kind != "identity" or row.pair.layout.swapped:
        return None
    if sketches[0] is None or sketches[1] is None or len(sketches[0]) != K * K:
        return None
    difference = (sketches[1].astype(np.float64) - sketches[0]).reshape(K, K)
    ones = signs(np.arange(math.prod(card.shape[:-1])), ROW_SEED).sum(0).astype(np.float64)
    size = float(np.linalg.norm(difference))
    if not size or not ones.any():
        return None
    added = ones @ difference / float(ones @ ones)
    return added, float(np.linalg.norm(difference - np.outer(ones, added))) / size


def _is_bias(added: Sketched, bias: SiteCard) -> bool:
    """Return whether what is added is the bias: by its sketch while it fits in one row of that, else by its size."""
    if bias.n <= WIDTH and bias.sketch and len(bias.sketch) == K * K:
        own = signs(np.arange(1), ROW_SEED)[0] @ np.reshape(bias.sketch, (K, K)) / K
        return float(np.linalg.norm(added - own)) <= _REST * float(np.linalg.norm(own))
    size = float(added @ added) / K
    return 1 / _ESTIMATE <= size / bias.sumsq <= _ESTIMATE


def _is_within(case: Case, prefix: str, n: int, side: int) -> bool:
    """Return whether a module inside has a bias of this size, as one that an adapter wraps."""
    spots = (spot for spot, card in case.cards[side].items() if card.n == n)
    return any(s.phase == "param" and s.site.startswith(prefix) and s.site.endswith(".bias") for s in spots)


def _answer(text: str, side: str, explained: float) -> Fit:
    return Fit(
        name="missing-bias", cause="implementation-mismatch", explained=explained, confidence="proven", text=text,
        values={"side": side}, fix=f"give the {side} the bias, and load it",
    )  # fmt: skip
