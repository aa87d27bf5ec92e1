"""Log-probabilities of policy and rollout differ by the format of the head.

What it means
    Two passes over the same tokens with the same weights give different log-probabilities, because the last matrix
    product (`lm_head`) is computed in bfloat16 or float16 in one and in a wider format in the other. A loss that
    divides their probabilities (PPO, GRPO) multiplies advantages by exp(difference), although nothing has been
    learned between the passes: ratios are off from the first inner step on, and clipping starts to bite.

How it is decided
    Within one step, a pass without gradients and one with gradients went through a head of 512 outputs or more, with
    bit for bit the same hidden states, weights that are the same in the lower format, and logits in different
    formats. At two measured steps the root mean square of the difference is at least 1e-3 nats: a warning when the
    loss code takes the exponential of a difference with values given from outside, else a note.

What to do
    Compute the head and the logits in float32 on both sides.

When it is wrong
    When the loss takes such an exponential of something other than these log-probabilities. Not seen are rollouts
    in another process or engine, heads that are no modules, batches that are split or shuffled between the
    passes, and compiled models: silence is no proof.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.update_rows import HEAD_GAP, rows_at
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy

GAP_NATS = 1e-3  # float32 heads agree to 1e-6; a bfloat16 head of 1000 outputs is off by 8e-3
N_STEPS = 2


@rule(
    "HC226",
    "config",
    severity="warning",
    reads=("optimizer",),
    asked="rows",
    not_in={"mindspore": "not watched yet: it would have to hear of passes that take no gradient"},
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the second step that shows it, once for each head."""
    for row in rows_at(window, HEAD_GAP):
        earlier = [r for r in window.history.rows(row.site, HEAD_GAP) if r.summary.sum >= GAP_NATS]
        if row.summary.sum >= GAP_NATS and len({r.step for r in earlier}) == N_STEPS - 1:
            yield _found(window, row, earlier[0].step)


def _found(window: Window, row: Reading, first: int) -> Finding:
    is_ratio = row.module == "ratio"
    return Finding(
        code="HC226",
        kind="config",
        severity="warning" if is_ratio else "note",
        title=f"a {row.dtype} head changes log-probabilities by {row.summary.sum:.2g} nats",
        step=first,
        rank=window.rank,
        phase="forward",
        site=row.site,
        port="out[0]",
        cause="precision-mismatch",
        limit=GAP_NATS,
        actual=row.summary.sum,
        why=(
            f"two passes over the same {row.call:,} hidden states with the same weights, one of them in {row.dtype}, "
            f"differ by {row.summary.sum:.2g} nats (root mean square)",
            *(("the loss takes exp(new - old): ratios of 1 are off by as much",) if is_ratio else ()),
        ),
        confidence="likely" if is_ratio else "possible",
        remedy=Remedy(
            action="fp32-island", targets=(row.site,), text="compute the head and its logits in float32 in both passes"
        ),
    )
