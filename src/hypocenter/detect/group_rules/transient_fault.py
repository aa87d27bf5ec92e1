"""A device computed something once that it does not compute again.

What it means
    The micro-batch was done again on the same device, from the same inputs, parameters and random state, and came
    to other bits than in the run; at least four further replays agree with the first. Arithmetic on a healthy device
    is repeatable, so the run's own result was wrong: a bit flipped in memory, in a register or on the way.

How it is decided
    At least one gradient or loss differs in its bits (where replays differ among themselves, at this step or another,
    by more than 10 times as much as they do), the other gradients of the step or another step of the same rank came
    out equal in every bit, every op of the replay that can be judged agrees with float64 on the CPU, and not half of
    the ranks or more differ at once. No Python number that modules and hooks keep changed while replaying.

What to do
    Once may be a cosmic ray. Note the rank, host and serial number; look at its ECC counters; take the host out and
    run the vendor's diagnostics (dcgmi diag -r 3, msprobe, a burn-in) when it comes again. Go back to a checkpoint
    before the step: a wrong gradient is in the weights of all replicas by now.

When it is wrong
    When the program keeps state where nobody can see it (a C++ extension, a file, a global counter) and behaves
    otherwise the second time.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.hardware import found_in
from hypocenter.detect.panel import Panel
from hypocenter.nouns import Finding


@group_rule("HC341", "hardware", severity="error", reads=("sdc",), alone=True, asked="rows")
def check(panel: Panel) -> Iterator[Finding]:
    """Report a device that came to other bits the second time."""
    yield from found_in(panel, "HC341", "transient")
