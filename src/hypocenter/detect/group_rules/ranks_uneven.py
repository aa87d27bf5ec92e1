"""Ranks of one model disagree about a step: its learning rate, its loss scale, or whether it was made.

What it means
    Ranks that hold copies or parts of one model take different updates from here on. Copies drift apart; parts of
    one model are trained at different speeds.

How it is decided
    The step records of all ranks of a data-, tensor- or context-parallel group are compared: learning rate, loss
    scale, and whether the loss scaler skipped the update. Where nothing tells the groups, those of all ranks, if they
    train copies: parameters that began equal, moved, and were equal. The first step at which one of them differs is
    told.

What to do
    A skip on one rank only: use a scaler that agrees over ranks (ShardedGradScaler for FSDP1, Megatron's or
    DeepSpeed's own). A rate: step the scheduler the same number of times on all ranks, not from data that differs
    between them (a plateau scheduler needs the loss averaged over ranks).

When it is wrong
    Where ranks train independent models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hypocenter.detect import replica_track
from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.panel import Panel
from hypocenter.detect.rank_words import axis_words, ranks_text, values_words
from hypocenter.detect.replica_track import is_last
from hypocenter.detect.stream_track import ALL, Uneven, track
from hypocenter.nouns import Finding, Remedy

_ADVICE = {
    "lr": "step the schedule equally often on all ranks, and by what is the same on all: all-reduce the loss that "
    "ReduceLROnPlateau is given",
    "loss_scale": "use a scaler that agrees over these ranks: for FSDP1 ShardedGradScaler, else all-reduce found_inf",
}
_WORDS = {"lr": "learning rate", "loss_scale": "loss scale"}


@group_rule("HC306", "desync", severity="error", reads=("digest",), asked="unlike", beside="HC301")
def check(panel: Panel) -> Iterator[Finding]:
    """At the last step, report the first disagreement along each axis."""
    known = track(panel)
    if not is_last(panel):
        return
    told: set[str] = set()
    if not replica_track.track(panel).are_learned:
        told.add(ALL)
    for uneven in sorted(known.uneven.values(), key=lambda u: (u.step, u.what != "skipped")):
        if uneven.axis not in told:  # a skip on one rank makes its loss scale differ from there on
            told.add(uneven.axis)
            yield _finding(uneven)


def _finding(uneven: Uneven) -> Finding:
    axis = f"{axis_words(uneven.axis)} ".lstrip()
    odd = [rank for rank, value in uneven.values.items() if value]
    if uneven.what == "skipped":
        title = f"the update was skipped on some {axis}ranks only"
        why = f"skipped on {len(odd)} of {len(uneven.values)} ranks: {ranks_text(odd)}"
        advice = "use a loss scaler that agrees over these ranks"
    else:
        word = _WORDS[uneven.what]
        title = f"the {word} is not the same on all {axis}ranks"
        why = f"the {word} is {values_words(uneven.values, digits=6)}"
        advice = _ADVICE[uneven.what]
        usual, n_usual = Counter(uneven.values.values()).most_common(1)[0]
        odd = (
            [rank for rank, value in uneven.values.items() if value != usual]
            if 2 * n_usual > len(uneven.values)
            else []
        )
    return Finding(
        code="HC306",
        kind="desync",
        severity="error",
        title=title,
        step=uneven.step,
        rank=odd[0] if odd else min(uneven.values),
        ranks=() if odd else tuple(uneven.values),
        phase="optimizer" if uneven.what == "lr" else "scaler",
        site=uneven.what,
        port="value",
        cause="config-mismatch",
        confidence="likely",
        limit=min(uneven.values.values()),
        actual=max(uneven.values.values()),
        why=(why,),
        remedy=Remedy(action="agree-over-ranks", text=advice),
    )
