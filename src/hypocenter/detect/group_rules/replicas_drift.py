"""Replicas are no longer equal, or are about to part: each has a gradient of its own.

What it means
    A parameter that several ranks hold copies of (over data parallelism, or a norm over tensor parallelism) does
    not have the same bits on all of them. Each rank now trains a model of its own; checkpoints hold one of them. Mostly
    gradients are not added up over the ranks: each rank learns from its share of the data (or of the sequence) only.

How it is decided
    64-bit digests of the parameters, and of their gradients as the optimizer sees them, are compared on the steps
    of `--replicas`, over the ranks that the placement of the parameter says are to be equal. The first step, the
    first parameter and the ranks are told. Gradients that differ by more than rounding, in more than one element, in
    more than one step or parameter, and not by one factor (that is HC303), are not reduced: proven where they have the
    bits that they had before any reduction. If gradients agree and only one parameter differs, or one gradient in a
    single element, once, a bit has flipped after the reduction or one rank alone has written: `hardware-fault` is
    possible. If they differ from the first recorded step on they were initialised or loaded differently. With two
    ranks nothing here tells which of them is wrong. Differences of gradients that are no larger than rounding, and
    replicas that somebody averages between updates, as in local SGD (then their gradients differ), are a note, and so
    it is over tensor parallelism where nothing but their equal start says that they are replicas. What HC303, HC304 or
    HC306 explains is told there.

    Along tensor-parallel groups without marks copies are the matrices that began as the same random numbers, where
    others did not. Where nothing tells the groups: copies are what began equal, moved, and was equal again. Where
    each rank has made a gradient of its own, all use one and the same, and the values differ from the start, either
    they were to begin equal, or these are parts (experts) whose gradients must not be added up. Where the ranks are
    given the same data and gradients of copies are added up by hand, all norms of the model must stay equal too
    (sequence parallelism); and so they must along tensor-parallel groups where such copies have the same gradient and
    all norms are as wide as one of them. Of what no optimizer holds (a teacher): each rank's loss is made of what it
    computes, it began equal, some ranks have moved it three times, and on others it has the same bits at every step
    that was looked at, while what is trained stays equal. An average that is only evaluated is none.

What to do
    Gradients of data-parallel ranks: call the model through its DDP wrapper, wrap again after moving or copying the
    model, leave `no_sync` before the last micro-batch. Of tensor-parallel ranks with sequence parallelism: mark norm
    and router weights `sequence_parallel`, or all-reduce their gradients with SUM over the group before the step.

    Else stop, and load a checkpoint from before the step. For one element or one parameter: test the memory of the odd
    rank's device. Else look for code that only some ranks run: an `if rank == 0` around a write to the model, a
    state dict loaded on one rank, a seed that differs where a parameter is made.

When it is wrong
    Where ranks are meant to differ although they began equal and nothing marks them: experts that are all
    initialised alike, an ensemble whose members all began from the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from hypocenter.detect import parted_norms, read_copies
from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.panel import Panel
from hypocenter.detect.rank_words import ranks_text, when_words, who
from hypocenter.detect.read_copies import Standing
from hypocenter.detect.replica_rows import READ
from hypocenter.detect.replica_track import is_last, track
from hypocenter.detect.replica_verdicts import GRADIENTS_AGREE, Verdict, verdicts
from hypocenter.nouns import Finding, Remedy, Severity

TIMES = 2  # steps


@group_rule("HC301", "desync", severity="error", reads=("digest", "scalar", "local"), asked="unlike")
def check(panel: Panel) -> Iterator[Finding]:
    """At the last step, report what made replicas differ, unless another rule knows."""
    for verdict in verdicts(panel):
        if verdict.reason == "unreduced":
            yield _unreduced(verdict)
        if verdict.reason in ("start", "flip", "split", "rounding") and verdict.differences:
            yield _finding(verdict)
    read_copies.note(panel)
    norms = parted_norms.note(panel)
    if is_last(panel) and norms.have_parted and norms.n >= TIMES:
        yield _norms(panel, sorted(norms.names), norms.since, _BESIDE_PARTS)
    if is_last(panel):
        yield from map(partial(_standing, panel), read_copies.standing(panel))
    known = track(panel)
    mixed = {name: steps for name, steps in (known.mixed or {}).items() if len(steps) >= TIMES}
    if is_last(panel) and mixed and not known.is_apart:
        yield _mixed(panel, mixed)
    copies = known.typed.get("dp", ())
    late = {name: steps for name, steps in known.late_apart.items() if name not in copies and len(steps) >= TIMES}
    if is_last(panel) and late and not known.facts.is_averaged(panel.ranks):
        yield _late(panel, late, {name: known.late[name][0] for name in late})
    if is_last(panel) and known.norms and known.start is not None:
        yield _norms(panel, known.norms, known.start.step, _OF_THE_SAME_DATA)
    elif is_last(panel) and known.parted and not known.facts.is_averaged(panel.ranks):
        yield _parted(panel, known.parted)


def _unreduced(verdict: Verdict) -> Finding:
    first, occasion = verdict.differences[0], verdict.first
    what = first.site if occasion.n_differ == 1 else f"{occasion.n_differ} of {occasion.n} replicated parameters"
    title = f"gradients of {what} are not reduced over the {verdict.along}ranks"
    if verdict.is_averaged:
        title = f"each {verdict.along}rank updates with its own gradients; the parameters are averaged between updates"
    remedy = Remedy(action="reduce-gradients", targets=(first.site,), text=_advice(verdict))
    is_open = verdict.is_averaged or verdict.is_assumed  # whether anything is wrong
    return Finding(
        code="HC301", kind="desync", severity=_severity(verdict), title=title,
        step=occasion.step, rank=first.odd[0] if first.odd else first.ranks[0], phase="grad",
        site=first.site, port="replica.grad", param=first.site,
        cause="unknown" if verdict.is_averaged else "missing-gradient-sync",
        confidence="possible" if is_open else "proven" if occasion.is_local else "likely",
        why=tuple(_why_unreduced(verdict)), then=verdict.aftermath, remedy=None if verdict.is_averaged else remedy,
        ranks=() if first.odd else first.ranks,
    )  # fmt: skip


def _severity(verdict: Verdict) -> Severity:
    if verdict.is_averaged or verdict.is_assumed:
        return "note"
    return "warning" if verdict.is_by_content else "error"


def _advice(verdict: Verdict) -> str:
    if verdict.is_learned:
        return "look at what adds these gradients up over the ranks before the step"
    if verdict.axis == "dp" and verdict.has_wrapper:
        return (
            "call the model through its DDP wrapper, wrap it again after moving or changing it, and leave no_sync "
            "before the last micro-batch"
        )
    if verdict.axis == "dp":
        return "average these gradients over all data-parallel ranks before the step"
    return "all-reduce these gradients with SUM over the group before the step (Megatron: mark them sequence_parallel)"


def _why_unreduced(verdict: Verdict) -> Iterator[str]:
    first = verdict.differences[0]
    yield f"the optimizer sees another gradient of {first.site} on each of {ranks_text(first.ranks)}, not a multiple"
    if verdict.first.is_local:
        yield "what it sees is each rank's own gradient from before the reduction, bit for bit"
    if verdict.later is not None:
        yield (
            "they began equal, and the losses of all ranks are the same at this step; other parameters have the same "
            f"gradient on all ranks, until they go apart too at step {verdict.later}"
        )
    since = verdict.since
    if since is not None and since >= verdict.first.step:
        yield "the parameters themselves are still equal before the update of this step"
    elif since is not None:
        yield f"it began {when_words(since, verdict.first.step)}: parameters are equal at step {since}"
    if verdict.is_outside_wrapper:
        yield "a DDP wrapper does not reduce them: a copy is trained, or they were frozen when it was made"
    if verdict.is_assumed:
        yield "no mark says that they are replicas: they began equal, and other parameters are tensor-parallel"
    if verdict.is_by_content:
        yield "no mark says that they are replicas: they began as the same random numbers, and other matrices did not"
    if verdict.is_averaged:
        yield "somebody writes to the parameters between updates: local SGD, if that is meant"


def _mixed(panel: Panel, mixed: Mapping[str, Sequence[int]]) -> Finding:
    name, *others = mixed
    more = f" and {len(others)} more" if others else ""
    return Finding(
        code="HC301", kind="desync", severity="warning", step=min(min(steps) for steps in mixed.values()),
        title=f"gradients of {name}{more} are added up over ranks that hold other values of it",
        rank=panel.ranks[0], phase="grad", site=name, port="replica.grad", param=name, cause="program-error",
        confidence="likely",
        why=(
            "each rank made a gradient of its own, the optimizers of all ranks are given the same one, and the values "
            "differ from the first recorded step on",
            *((f"the same for {', '.join(others[:3])}{' ...' if len(others) > 3 else ''}",) if others else ()),
            "other parameters are equal on all ranks",
        ),
        then=("each rank's part follows the mean of what different parts need",),
        remedy=Remedy(
            action="own-gradients", targets=(name,),
            text="leave parts of a model (experts, shards) out of the reduction; copies have to begin equal",
        ),
    )  # fmt: skip


def _standing(panel: Panel, found: Standing) -> Finding:
    name, n = found.names[0], len(found.names)
    return Finding(
        code="HC301", kind="desync", severity="warning", step=found.step, rank=found.still[0], phase="param", site=name,
        title=f"{name} stands still on {ranks_text(found.still)}, and moves on {ranks_text(found.moving)}",
        port=READ, param=name, cause="replica-drift", confidence="likely", ranks=found.still,
        why=(
            "it is in no optimizer, and the loss of every rank is made of what it computes",
            f"it was equal on all ranks; {ranks_text(found.still)} had the same bits whenever it was read",
            *((f"the same for {n - 1} more that were looked at",) if n > 1 else ()),
            "what is trained is equal on all ranks",
        ),
        then=("the ranks learn from different ones",),
        remedy=Remedy(
            action="update-on-all-ranks", targets=(name,),
            text="move it on every rank (trained weights are the same there), or broadcast it before it is used",
        ),
    )  # fmt: skip


_OF_THE_SAME_DATA = (
    "all ranks are given the same data; the program adds up gradients of copies over them, but of no norm"
)
_BESIDE_PARTS = (
    "layers are cut over the ranks; copies beside them, which began as the same random numbers, have the same gradient "
    "on all, and no norm has"
)


def _norms(panel: Panel, norms: Sequence[str], step: int, how: str) -> Finding:
    name = norms[0]
    return Finding(
        code="HC301", kind="desync", severity="warning", step=step, rank=panel.ranks[0], phase="grad", site=name,
        title=f"gradients of {len(norms)} parameters of norms are not added up over the ranks", port="replica.grad",
        param=name, cause="missing-gradient-sync", confidence="possible",
        why=(
            how,
            f"norms began alike on all ranks, are as wide as the copies, and part at their first move: {name}, ...",
        ),
        then=("each rank's norms learn from its part of the sequence",),
        remedy=Remedy(action="reduce-gradient", targets=(name,), text="add their gradients up over the ranks as well"),
    )  # fmt: skip


def _late(panel: Panel, apart: Mapping[str, Sequence[int]], since: Mapping[str, int]) -> Finding:
    """Report parameters that are trained later than others, began equal, and went apart at once."""
    name, *others = sorted(apart, key=lambda each: (since[each], each))
    more = f"the same for {len(others)} more: {', '.join(others[:3])}{' ...' * (len(others) > 3)}"
    return Finding(
        code="HC301", kind="desync", severity="error", title=f"replicas of {name} went apart",
        step=since[name], rank=panel.ranks[0], phase="param", site=name, port="replica", param=name,
        cause="replica-drift", confidence="likely", ranks=tuple(panel.ranks),
        why=(
            f"it is equal on all ranks at step {since[name]}, the first with a gradient of it, and not at step "
            f"{apart[name][0]}, though all ranks have the same gradient",
            *((more,) if others else ()),
            "what was trained before it stays equal",
        ),
        then=("each rank computes with another model",),
        remedy=Remedy(
            action="share-updates", targets=(name,),
            text="let each rank update it, or bring it from its owner to the others as those before it",
        ),
    )  # fmt: skip


def _parted(panel: Panel, parted: Sequence[tuple[int, str, str]]) -> Finding:
    """Report parameters that no wrapper calls replicas, though the rest of their modules is shared."""
    step, name, beside = parted[0]
    others = [each for _, each, _ in parted[1:]]
    why = [f"{beside} is equal on all ranks after its updates, {name} was so before the first and is not any more"]
    if others:
        why.append(f"the same for {len(others)} more: {', '.join(others[:3])}{' ...' if len(others) > 3 else ''}")
    return Finding(
        code="HC301", kind="desync", severity="warning", title=f"{name} is not shared by the ranks, as its module is",
        step=max(0, step - 1), rank=panel.ranks[0], phase="param", site=name, port="replica", param=name,
        cause="missing-gradient-sync", confidence="likely", why=tuple(why),
        then=("each rank trains its own",),
        remedy=Remedy(action="reduce-gradient", targets=(name,), text="add its gradient up over the ranks as well"),
    )  # fmt: skip


def _finding(verdict: Verdict) -> Finding:
    first = verdict.differences[0]
    rank = first.odd[0] if first.odd else first.largest if first.largest is not None else first.ranks[-1]
    is_gradient = verdict.first.what == "grad"
    is_harmless = verdict.reason == "rounding" or verdict.is_averaged or verdict.is_assumed
    severity = "note" if is_harmless else _severity(verdict)
    remedy = Remedy(action="restore-replicas", targets=(first.site,), text=_restore(verdict))
    return Finding(
        code="HC301",
        kind="hardware" if verdict.reason == "flip" and not is_harmless else "desync",
        severity=severity,
        title=_title(verdict),
        step=verdict.first.step,
        rank=rank,
        phase="grad" if is_gradient else "param",
        site=first.site,
        port="replica.grad" if is_gradient else "replica",
        param=first.site,
        cause=_CAUSES[verdict.reason] if not verdict.is_averaged else "replica-drift",
        confidence="likely" if verdict.reason in ("start", "rounding") or first.kind == "element" else "possible",
        why=tuple(_why(verdict)),
        then=verdict.aftermath,
        remedy=None if is_harmless else remedy,
        ranks=() if first.odd or first.largest is not None else first.ranks,
    )


_CAUSES = {"start": "init-mismatch", "flip": "hardware-fault", "split": "replica-drift", "rounding": "noise"}


def _restore(verdict: Verdict) -> str:
    if verdict.since is None and verdict.reason == "start":  # nothing is known of a time at which they were equal
        return "give all ranks the same weights before training: one checkpoint, one seed, or a broadcast from rank 0"
    return "load the last checkpoint from before this step on all ranks"


def _title(verdict: Verdict) -> str:
    first, replicas = verdict.differences[0], f"{verdict.along}replicas"
    n = verdict.first.n_differ
    what = f"{first.site}" if n == 1 else f"{n} parameters"
    if verdict.reason == "rounding":
        return f"{replicas} of {what} differ by rounding"
    if verdict.is_averaged:
        return f"{replicas} of {what} differ between averagings"
    if verdict.reason == "start":
        return f"{replicas} of {what} differ from the first recorded step on"
    if verdict.first.what == "grad":
        return f"the reduced gradient of {what} is not the same on all {verdict.along}ranks"
    return f"{replicas} of {what} went apart"


def _why(verdict: Verdict) -> Iterator[str]:
    first = verdict.differences[0]
    yield f"{who(first.ranks, first.odd)} ({when_words(verdict.since, verdict.first.step)})"
    if verdict.is_learned:
        had = (
            "all ranks use the same gradients"
            if verdict.reason == "start"
            else "they began equal, moved, and were equal again"
        )
        yield f"no wrapper tells what is a replica: {had}"
    if first.largest is not None and not first.odd:
        yield f"the norm on rank {first.largest} is more than ten times that of the others"
    if first.change is not None:
        yield f"the difference is that of one single element, by {first.change:.3g}: a flipped bit looks like this"
    if verdict.reason == "rounding":
        yield "their gradients differ by no more than another order of adding up makes"
    elif verdict.is_averaged:
        yield "the parameters are changed between updates too: they are averaged, or loaded, from time to time"
    elif verdict.reason == "flip" and verdict.first.what == "param":
        agree = "the gradients of this step agree, and " if verdict.have_gradients_agreed else ""
        yield f"{agree}only 1 of {verdict.first.n} parameters differs"
    elif verdict.reason == "split":
        if verdict.have_gradients_agreed:
            yield GRADIENTS_AGREE
        writers = [rank for rank in verdict.writers if rank in first.ranks]
        if writers:
            how = ", not alike" if len(writers) == len(first.ranks) else " only"
            yield f"between two updates the parameters were changed on {ranks_text(writers)}{how}"
    elif verdict.reason == "flip":
        yield f"{ranks_text(first.ranks)} agree on the other {verdict.first.n - 1} gradients of this step"
