"""A rank's device computes wrong results again and again.

What it means
    The same micro-batch gives the same wrong bits each time on this device, and right ones on a neighbour's. It is
    not the data, the code or the kernel, for those are the same there.

How it is decided
    An op of the replay is off from float64 on the CPU by more than any order of summation and any rounding can
    explain, and a neighbour that did the same micro-batch has no such op (proven), or no other rank has one in its
    own (likely). Below what rounding explains bits decide: with three ranks or more that hold the same parameters,
    the one that disagrees with all its neighbours while they agree with each other; with two, the one where
    more elements of products change when rows are moved by one.

What to do
    Take the host out, run the vendor's diagnostics, replace the device. Go back to a checkpoint from before the
    first step that was off, if that is known: check earlier ones by doing them again on another host.

When it is wrong
    When the devices of a job are not alike (other models, other libraries): they are compared beyond rounding only,
    and Hypocenter asks each for its name and versions. A kernel that fails for some inputs only looks like this
    where no neighbour has done the same micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.hardware import found_in
from hypocenter.detect.panel import Panel
from hypocenter.nouns import Finding


@group_rule("HC342", "hardware", severity="error", reads=("sdc",), alone=True, asked="rows")
def check(panel: Panel) -> Iterator[Finding]:
    """Report a device that is wrong by itself."""
    yield from found_in(panel, "HC342", "persistent")
