"""Weight decay is applied to other parameters, or is another number.

What it means
    Biases, norms and embeddings are commonly left out of weight decay; which are differs between frameworks.

How it is decided
    The update is the first to differ, and the optimizer's group of that parameter has another weight_decay. Or, when
    that was not recorded: the difference of the updated parameters lies along the parameter itself by more than 90 %,
    as only decay makes it.

What to do
    Compare the parameter groups of both optimizers (the text says which parameters differ).

When it is wrong
    Another learning rate of one group scales the decay too; its other part does not lie along the parameter.
"""

from __future__ import annotations

from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fit_evidence import options_apart, say, share_along
from hypocenter.compare.fitting import fit
from hypocenter.nouns import Confidence


@fit("weight-decay")
def weight_decay(case: Case) -> Fit | None:
    """Another decay of the first parameter whose update differs."""
    row = case.row
    if row is None or case.first.phase != "optimizer" or row.spot.phase != "param":
        return None
    options = options_apart(case, case.first.site)
    share = _share(case)
    if "weight_decay" in options:
        mine, other = options["weight_decay"]
        is_alone = len(options) == 1
        if not is_alone and not share > 0.9:
            return None
        text = f"weight decay of {case.first.site} is {say(mine)} in the baseline and {say(other)} in the candidate"
        return _answer(f"{text}; {_others(case)}", 1.0 if is_alone else share, "proven", mine, other)
    if options or not share > 0.9 or all(case.facts):
        return None
    return _answer(f"the update of {case.first.site} differs by a multiple of the parameter itself: it decays on one "
                   "side only, or by another rate", share, "likely", None, None)  # fmt: skip


def _share(case: Case) -> float:
    """Return the share of the difference that lies along the parameter as it was before; NaN when not known."""
    row = case.row
    before = case.rows_before(phase="param", site=case.first.site, port="value")
    return share_along(row, before[0].baseline) if row is not None and before else float("nan")


def _others(case: Case) -> str:
    """Say how many parameters have another weight decay."""
    found = [
        {name: group.options.get("weight_decay") for one in facts.optimizers for group in one.groups
         for name in group.parameters}
        for facts in case.facts if facts is not None
    ]  # fmt: skip
    names = [name for name in found[0] if name in found[1] and found[0][name] != found[1][name]]
    return f"{len(names):,} of {len(found[0]):,} parameters have another weight decay"


def _answer(text: str, explained: float, confidence: Confidence, mine: object, other: object) -> Fit:
    return Fit(
        name="weight-decay", cause="config-mismatch", explained=explained, confidence=confidence, text=text,
        values={"baseline": mine, "candidate": other}, fix="put the same parameters into the groups without decay",
    )  # fmt: skip
