"""Evidence -> Verdict: every cause is asked; the most specific of the best supported answers wins, else `unknown`.

A cause is one file in `causes/` whose module docstring is its manual page:

    @cause("format-overflow", order=200)
    def decide(evidence: Evidence) -> Verdict | None: ...
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from hypocenter.catalogue import Catalogue
from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.operators import subject
from hypocenter.errors import UnknownNameError
from hypocenter.manual import Manual, page_of
from hypocenter.nouns import CAUSES as VOCABULARY
from hypocenter.optrace import UNSEEN, UNWRITTEN

Decide = Callable[[Evidence], "Verdict | None"]
CONFIDENCES: tuple[str, ...] = ("proven", "likely", "possible")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One file of the catalogue. `order`: among equally supported answers the lowest is the most specific."""

    name: str
    order: int
    decide: Decide
    of_spikes: bool = False  # asked about steps that jumped and stayed finite, and about no others

    @property
    def manual(self) -> Manual:
        """The manual page of the cause: the docstring of its file."""
        return page_of(self.decide)


CATALOGUE: Catalogue[Cause] = Catalogue("hypocenter.diagnose.causes", "hypocenter.causes")


def cause(name: str, *, order: int, of_spikes: bool = False) -> Callable[[Decide], Decide]:
    """Register a function as the decider of a cause.

    Args:
        name: of the vocabulary.
        order: among equally supported answers the lowest is the most specific.
        of_spikes: it is asked about steps that jumped and stayed finite, and about no others.

    The vocabulary of causes is closed: a third party either decides one of its names, or uses a name with a dot in it,
    `acme.bad-firmware`, so that nobody mistakes it for one of ours.

    Raises:
        UnknownNameError: a name outside the vocabulary, or one that is registered already.
    """
    if name not in VOCABULARY and "." not in name:
        near = difflib.get_close_matches(name, VOCABULARY, n=1)
        raise UnknownNameError(
            f"{name!r} is not in the vocabulary of causes",
            where="@cause",
            fix=f"did you mean {near[0]!r}?" if near else "use a name with a dot, such as acme.bad-firmware",
        )
    return CATALOGUE.adding(name, lambda decide: Cause(name=name, order=order, decide=decide, of_spikes=of_spikes))


def causes(plugins: Iterable[str] = ()) -> dict[str, Cause]:
    """Return all causes by name, those of plugins too."""
    CATALOGUE.load(plugins)
    return CATALOGUE.entries()


def judge(evidence: Evidence, plugins: Iterable[str] = ()) -> Verdict:
    """Name the cause. Never raises: a cause that fails is listed as broken, and without any it is `unknown`."""
    if evidence.received:
        return unknown(evidence)  # its cause is on the rank that sent it
    answers: list[tuple[int, int, Verdict]] = []
    for entry in causes(plugins).values():
        if entry.of_spikes != (evidence.trigger == "spike"):
            continue
        try:
            verdict = entry.decide(evidence)
            if verdict is not None:
                answers.append((CONFIDENCES.index(verdict.confidence), entry.order, verdict))
        except Exception as error:  # a stranger's file must not take the diagnosis with it
            CATALOGUE.report(entry.name, error)
    if not answers:
        return unknown(evidence)
    best = min(answers, key=lambda answer: answer[:2])[2]
    return replace(best, why=_unique((*best.why, *why.common(evidence))))


def unknown(evidence: Evidence) -> Verdict:
    """Return the verdict without a cause: where it appeared, and what was tried."""
    lines = (*why.inputs(evidence), *_neither(evidence), *why.common(evidence))
    return Verdict(cause="unknown", confidence="possible", title=_symptom(evidence), why=_unique(lines))


def _symptom(evidence: Evidence) -> str:
    if evidence.received and evidence.origin is not None:
        return f"a value that was not finite came from another rank ({evidence.origin.op})"
    if evidence.leaf is not None and evidence.origin is not None and _came_in_backward(evidence):
        made = " and ".join(chip.split(" ")[0] for chip in evidence.chips) or "a non-finite value"
        return f"{subject(evidence.origin)} brought {made} into the gradient of {_named(evidence.bad_params)}"
    if evidence.origin is not None:
        made = " and ".join(chip.split(" ")[0] for chip in evidence.chips) or "non-finite values"
        if evidence.origin.op == UNWRITTEN:
            return f"{subject(evidence.origin)} was read, and held {made}"
        known = "" if evidence.origin.op == UNSEEN else " from finite inputs"
        return f"{subject(evidence.origin)} made {made}{known}"
    if evidence.leaf is not None:
        return f"{why.leaf_name(evidence)} was not finite before any operation"
    if evidence.trigger == "unused-loss":
        return "a loss that the program went on without is not finite"
    if evidence.trigger == "nonfinite-loss" or not evidence.forward_finite:
        return "the loss is not finite"
    n = len(evidence.bad_params)
    if evidence.trigger == "nonfinite-param":
        return f"{_named(evidence.bad_params)} became non-finite in the optimizer step"
    if evidence.trigger == "dead-grad":
        return f"the gradient of {_named(evidence.bad_params)} is exactly zero"
    return f"the gradient of {_named(evidence.bad_params)} is not finite" if n else "a gradient is not finite"


def _came_in_backward(evidence: Evidence) -> bool:
    is_backward = evidence.origin is not None and evidence.origin.phase == "backward"
    return is_backward and evidence.leaf_kind == "external" and not evidence.killed_in_forward


def _named(params: tuple[str, ...]) -> str:
    if not params:
        return "a parameter"
    return params[0] if len(params) == 1 else f"{params[0]} and {len(params) - 1} more"


def _neither(evidence: Evidence) -> tuple[str, ...]:
    if evidence.origin is None or evidence.leaf is not None or evidence.received:
        return ()
    if not evidence.float64.ran:
        return (f"it was not executed again in float64: {evidence.float64.why_not or 'no reason recorded'}",)
    if evidence.float64.finite:
        return (f"in float64 it is finite, |max| {why.short(evidence.float64.absmax)}, and would fit the format",)
    return ("in float64 it is not finite either",)


def _unique(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for line in lines if line))
