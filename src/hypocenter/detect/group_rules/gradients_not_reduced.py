"""Gradients of replicated parameters are not added up over the ranks.

What it means
    Each rank updates its copy of a parameter with a gradient of its own. The copies drift apart from this step on,
    and each rank learns from its share of the data (or of the sequence) only.

How it is decided
    The gradients that the optimizer sees differ between ranks on which the parameter is a replica, by more than
    rounding, in more than one element, and not by one common factor (that is HC303). Where the gradient before any
    reduction was recorded too and has the same bits, that is said. A single parameter that differs at one step only
    is no missing reduction (HC301). A note where the parameters are averaged between updates, as in local SGD, and over
    tensor parallelism where nothing but their equal start says that they are replicas.

What to do
    Data parallel: call the model through its DDP wrapper, wrap again after moving or copying the model, leave
    `no_sync` before the last micro-batch. Tensor parallel with sequence parallelism: mark norm and router weights
    `sequence_parallel`, or all-reduce their gradients with SUM over the tensor-parallel group before the step.

When it is wrong
    Where replicas are meant to go their own ways: an ensemble whose members all began from the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.panel import Panel
from hypocenter.detect.rank_words import ranks_text, when_words
from hypocenter.detect.replica_verdicts import Verdict, verdicts
from hypocenter.nouns import Finding, Remedy


@group_rule("HC302", "desync", severity="error", reads=("digest", "scalar", "local"), asked="unlike")
def check(panel: Panel) -> Iterator[Finding]:
    """With the last step: gradients that nobody has reduced."""
    for verdict in verdicts(panel):
        if verdict.reason == "unreduced":
            yield _finding(verdict)


def _finding(verdict: Verdict) -> Finding:
    first, occasion = verdict.differences[0], verdict.first
    what = first.site if occasion.n_differ == 1 else f"{occasion.n_differ} of {occasion.n} replicated parameters"
    title = f"gradients of {what} are not reduced over the {verdict.along}ranks"
    if verdict.is_averaged:
        title = f"each {verdict.along}rank updates with its own gradients; the parameters are averaged between updates"
    return Finding(
        code="HC302",
        kind="desync",
        severity="note" if verdict.is_averaged or verdict.is_assumed else "error",
        title=title,
        step=occasion.step,
        rank=first.odd[0] if first.odd else first.ranks[0],
        phase="grad",
        site=first.site,
        port="replica.grad",
        param=first.site,
        cause="missing-gradient-sync",
        confidence="possible" if verdict.is_assumed else "proven" if occasion.is_local else "likely",
        why=tuple(_why(verdict)),
        then=verdict.aftermath,
        remedy=None
        if verdict.is_averaged
        else Remedy(action="reduce-gradients", targets=(first.site,), text=_advice(verdict)),
    )


def _advice(verdict: Verdict) -> str:
    if verdict.is_learned:
        return "look at what adds these gradients up over the ranks before the step"
    if verdict.axis == "dp":
        return "call the model through its DDP wrapper, and wrap it again after moving or copying it"
    return "all-reduce these gradients with SUM over the group before the step (Megatron: mark them sequence_parallel)"


def _why(verdict: Verdict) -> Iterator[str]:
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
        yield "there is a DDP wrapper, but the optimizer's parameters are not inside it: a copy is trained"
    if verdict.is_assumed:
        yield "no mark says that they are replicas: they began equal, and other parameters are tensor-parallel"
    if verdict.is_averaged:
        yield "somebody writes to the parameters between updates"
