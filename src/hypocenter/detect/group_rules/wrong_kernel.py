"""A kernel gives a wrong result on every device.

What it means
    An op of the replayed step is off from float64 on the CPU by more than any order of summation and any rounding can
    explain, and it is so wherever it was done: the kernel, its compiler or its library is wrong, not one device.

How it is decided
    The same op is off on all ranks that checked (two at least), or a neighbour comes to the same wrong bits for the
    same micro-batch. With one rank alone it cannot be told from a fault of the device: confidence possible.

What to do
    Report the op with its shapes and formats to those who make the library. Until it is mended use another kernel:
    another backend, deterministic or math-only mode, another version.

When it is wrong
    When a device adds or multiplies in a narrower format by choice and no setting says so. Ops that are not in the
    list of those that can be judged are never accused.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.hardware import found_in
from hypocenter.detect.panel import Panel
from hypocenter.nouns import Finding


@group_rule("HC343", "hardware", severity="error", reads=("sdc",), alone=True, asked="rows")
def check(panel: Panel) -> Iterator[Finding]:
    """Report an op that is wrong everywhere."""
    yield from found_in(panel, "HC343", "kernel")
