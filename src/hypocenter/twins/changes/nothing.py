"""The program repeats itself: run again in the same way it gives the same bits.

What it means
    Two runs of one program with one seed should give the same numbers. While they do not, no comparison says much: its
    differences are those of two runs of the same thing.

How it is decided
    The bits of what every operator reads and writes are compared, from the import of torch on, and every draw from a
    generator is followed to its seed. What differs is followed back from losses, gradients and parameters to the first
    operator that nothing before it explains.

What to do
    See the line that is named; `hypocenter run --deterministic` imposes seeds and deterministic algorithms.

When it is wrong
    What runs inside a compiled region or in a kernel of your own is one thing from outside.
"""

from __future__ import annotations

from hypocenter.compare.repeats.engine import compare_repeats
from hypocenter.twins.answer import Twin
from hypocenter.twins.bits import in_bits, recording_bits
from hypocenter.twins.change import Asked, change


@change("nothing", order=1)
def nothing(asked: Asked) -> Twin:
    """Run it twice, in the same way."""
    config = recording_bits(asked.steps, deterministic=asked.deterministic, seed=asked.seed)
    made = [asked.runs.make(f"run-{n}", config) for n in (1, 2)]
    return in_bits(compare_repeats([one.directory for one in made]), made)
