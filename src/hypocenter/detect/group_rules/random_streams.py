"""Random streams that were in step over tensor-parallel ranks no longer are.

What it means
    Dropout on an activation that every tensor-parallel rank holds a copy of has to draw the same numbers on all of
    them. From this step on the ranks draw different ones: the copies differ, and so does everything after them.

How it is decided
    Digests of the random states are compared before the first forward of a step, on the first steps and those of
    `--replicas`. A stream that was equal over a tensor- or context-parallel group and then is not is reported with
    the last step at which it was and the rank that differs from the others. An error where replicated parameters or
    the loss went apart with it, a warning where nothing is known of them, a note where they stay equal. Streams that no
    dropout draws from (Python's, NumPy's, the CPU's beside an accelerator) and data-parallel groups are not judged.
    Where nothing tells the groups: ranks with the same data and equal weights, whose states and losses differ at the
    first step, and whose copies go apart later.

What to do
    Find what drew a number on one rank only: a data loader or sampler on the first rank, an augmentation, an
    `if rank == 0`. Give it a `torch.Generator` of its own, or seed all ranks again after it.

When it is wrong
    Where streams began equal by chance of the same seed and nothing replicated is random.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect import stream_track
from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.panel import Panel
from hypocenter.detect.rank_words import axis_words, when_words, who
from hypocenter.detect.replica_track import is_last, track
from hypocenter.detect.replica_verdicts import Verdict, verdicts
from hypocenter.detect.stream_track import Desync
from hypocenter.nouns import Finding, Remedy, Severity


@group_rule("HC304", "desync", severity="error", reads=("digest", "scalar", "local"), asked="unlike", beside="HC301")
def check(panel: Panel) -> Iterator[Finding]:
    """At the last step, report the first random stream that went apart, along each axis."""
    known = stream_track.track(panel)
    judged = {verdict.axis: verdict for verdict in verdicts(panel)}
    if not is_last(panel):
        return
    yield from (
        _from_the_start(verdict) for verdict in judged.values() if verdict.reason == "streams" and verdict.later
    )
    first: dict[str, Desync] = {}
    for desync in known.desyncs.values():
        if known.is_used(desync.stream) and (desync.axis not in first or desync.step < first[desync.axis].step):
            first[desync.axis] = desync
    for axis, desync in first.items():
        verdict = judged.get(axis)
        then: list[str] = []
        if verdict is not None and verdict.reason == "streams":
            what = "gradients" if verdict.first.what == "grad" else "parameters"
            then.append(
                f"{what} of {verdict.first.n_differ} of {verdict.first.n} replicated parameters differ at step "
                f"{verdict.first.step}, first {verdict.differences[0].site}"
            )
        apart = known.losses_apart.get((axis, desync.ranks))
        if apart is not None and apart.since is not None and apart.steps[0] >= desync.since:
            then.append(f"the loss, the same on all of them before, is not from step {apart.steps[0]} on")
        has_equal = verdict is None and any(o.step > desync.step and o.n for o in track(panel).of(axis, "param"))
        has_equal = has_equal or (axis, desync.ranks) in known.loss_was_equal
        yield _finding(desync, "error" if then else "note" if has_equal else "warning", tuple(then))


def _from_the_start(verdict: Verdict) -> Finding:
    first = verdict.differences[0]
    return Finding(
        code="HC304", kind="desync", severity="error", step=verdict.first.step, rank=first.ranks[-1], phase="data",
        title="the random streams are not the same on ranks that hold copies and do not reduce them",
        site="rng.cpu", port="state", cause="rng-desync", confidence="likely",
        why=(
            f"{who(first.ranks, ())}",
            "the ranks are given the same data and began with the same weights, but their losses differ: nothing else "
            "but random numbers can make them",
        ),
        then=(f"copies go apart, first {first.site}, and others at step {verdict.later}",),
        remedy=Remedy(action="same-seed", text="seed what draws for copies alike on all of these ranks"),
    )  # fmt: skip


def _finding(desync: Desync, severity: Severity, then: tuple[str, ...]) -> Finding:
    name = desync.stream.removeprefix("rng.")
    return Finding(
        code="HC304",
        kind="desync",
        severity=severity,
        title=f"the {name} random stream is no longer the same on {axis_words(desync.axis)} ranks",
        step=desync.step,
        rank=desync.odd[0] if desync.odd else desync.ranks[0],
        phase="data",
        site=desync.stream,
        port="state",
        cause="rng-desync",
        confidence="likely" if then else "possible",
        why=(
            f"{who(desync.ranks, desync.odd)}",
            f"the state before the first forward was the same on all of them at step {desync.since}; one of them has "
            f"drawn another amount of random numbers {when_words(desync.since, desync.step)}",
        ),
        then=then,
        remedy=Remedy(action="private-generator", text="give what draws on one rank only a generator of its own"),
    )
