"""The optimizer is another one, or has other numbers: eps, betas, momentum.

What it means
    Two programs whose gradients agree take other steps from them.

How it is decided
    The update is the first to differ, while parameters, gradients and state before it agree; and the optimizer's class
    or an option of the group of that parameter, other than learning rate and weight decay, differs between the runs.

What to do
    Set the same options. Frameworks have other defaults: Adam's eps is 1e-8 in torch and 1e-6 in some, beta2 0.999 or
    0.95.

When it is wrong
    When an option that differs has no effect on the update (foreach, fused) it is not named.
"""

from __future__ import annotations

from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fit_evidence import options_apart, say
from hypocenter.compare.fitting import fit

_WITHOUT_EFFECT = frozenset({
    "foreach", "fused", "capturable", "differentiable", "lr", "initial_lr", "weight_decay", "name", "lr_mult",
})  # fmt: skip
_NAMES = {"kind": "the optimizer"}


@fit("optimizer-options")
def optimizer_options(case: Case) -> Fit | None:
    """Other options of the group of the first parameter whose update differs."""
    if case.first.phase != "optimizer":
        return None
    options = options_apart(case, case.first.site)
    found = {name: pair for name, pair in sorted(options.items()) if name not in _WITHOUT_EFFECT}
    if not found:
        return None
    words = ", ".join(
        f"{_NAMES.get(name, name)} is {say(mine)} in the baseline and {say(other)} in the candidate"
        for name, (mine, other) in found.items()
    )
    return Fit(
        name="optimizer-options", cause="config-mismatch", explained=1.0,
        confidence="proven" if "weight_decay" not in options else "likely", text=words,
        values={name: list(pair) for name, pair in found.items()}, fix="give the optimizer the same options",
    )  # fmt: skip
