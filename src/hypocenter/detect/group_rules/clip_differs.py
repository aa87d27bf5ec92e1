"""Ranks scale the same gradient by different factors.

What it means
    Clipping multiplies gradients by a coefficient that has to be the same on all ranks of a model. Here it is not:
    replicas drift apart, and shards of one parameter are updated with different strength.

How it is decided
    Either the gradients that the optimizer sees on two ranks are parallel (their sketches are multiples of each
    other, with the same factor for all parameters) although their parameters are replicas; or the coefficients
    themselves, measured as the ratio of gradient norms before and after clipping, differ by more than 1 % within a
    data-, tensor- or context-parallel group; the step is then the first from which on they differ by more than
    rounding. Not told where the gradients differ in direction too (HC301), nor over
    pipeline stages, which some programs clip one by one.

What to do
    Compute one norm for the whole model: squared norms of shards summed over their group, replicated parameters
    counted once; then clip with the same coefficient on every rank. FSDP2 and DTensor do so in
    `torch.nn.utils.clip_grad_norm_`; FSDP1 has `model.clip_grad_norm_`. Afterwards copy the weights and the
    optimizer state from one replica to the others.

When it is wrong
    Where each rank is meant to clip by itself, as with several independent models in one job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hypocenter.axes import HOLD_COPIES
from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.panel import Panel
from hypocenter.detect.rank_words import axis_words, values_words, when_words
from hypocenter.detect.replica_rows import CLIP
from hypocenter.detect.replica_track import Spread, is_last, track
from hypocenter.detect.replica_verdicts import Verdict, verdicts
from hypocenter.nouns import Finding, Remedy


@group_rule("HC303", "desync", severity="error", reads=("digest", "scalar", "local"), asked="unlike", beside="HC301")
def check(panel: Panel) -> Iterator[Finding]:
    """At the last step, report the first coefficient that is not the same on all ranks."""
    judged = {verdict.axis: verdict for verdict in verdicts(panel)}
    known = track(panel)
    if not is_last(panel):
        return
    for axis in HOLD_COPIES:
        verdict = judged.get(axis)
        spreads = known.clips.get(axis, [])
        if verdict is not None and verdict.reason == "clip" and not (verdict.is_averaged or verdict.is_assumed):
            yield _of_replicas(verdict, verdict.clip or (spreads[0] if spreads else None))
        elif verdict is None and spreads and not (axis == "dp" and known.facts.is_averaged(spreads[0].ranks)):
            yield _of_shards(axis, spreads[0])


def _of_replicas(verdict: Verdict, spread: Spread | None) -> Finding:
    first = verdict.differences[0] if verdict.differences else None
    factors = verdict.factors or {}
    why = (
        [f"the gradient of {first.site} has the same direction on all ranks, times {values_words(factors)}"]
        if factors and first
        else []
    )
    if spread is not None:
        why.append(f"the coefficient of clipping is {values_words(spread.values)}")
    if verdict.since is not None and verdict.since >= verdict.first.step:
        why.append("the parameters are still equal before the update of this step")
    is_proven = bool(factors) and spread is not None
    step = min(verdict.first.step, spread.step) if spread is not None else verdict.first.step
    return _finding(
        verdict.along, step, spread.values if spread else factors, why, verdict.aftermath, is_proven=is_proven
    )


def _of_shards(axis: str, spread: Spread) -> Finding:
    at = f" at step {spread.step}" if spread.step != spread.began else ""
    why = [f"the coefficient of clipping is {values_words(spread.values)}{at}"]
    if at:
        why.append(f"they differ by more than rounding from step {spread.began} on")
    if spread.since is not None:
        why.append(f"it began {when_words(spread.since, spread.began)}: at step {spread.since} they are alike")
    return _finding(f"{axis_words(axis)} ", spread.began, spread.values, why, (), is_proven=False)


def _finding(
    along: str, step: int, values: Mapping[int, float], why: list[str], then: tuple[str, ...], *, is_proven: bool
) -> Finding:
    rank, actual = max(values.items(), key=lambda item: item[1])
    return Finding(
        code="HC303",
        kind="desync",
        severity="error",
        title=f"{along}ranks clip the same gradient by different coefficients",
        step=step,
        rank=rank,
        ranks=tuple(values) if len(values) == 2 else (),  # of two nobody knows which is wrong
        phase="optimizer",
        site=CLIP,
        port="value",
        cause="implementation-mismatch",
        confidence="proven" if is_proven else "likely",
        limit=min(values.values()),
        actual=actual,
        why=tuple(why),
        then=then,
        remedy=Remedy(
            action="clip-by-global-norm",
            text="clip by one norm of the whole model on all ranks: torch.nn.utils.clip_grad_norm_ does so for FSDP2, "
            "model.clip_grad_norm_ for FSDP1; by hand, add up the squares over the ranks",
        ),
    )
