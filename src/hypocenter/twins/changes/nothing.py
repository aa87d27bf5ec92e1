"""The program repeats itself: run again in the same way it gives the same bits.

What it means
    Two runs of one program with one seed should give the same numbers. While they do not, no comparison says much: its
    differences are those of two runs of the same thing.

How it is decided
    The bits of what every operator reads and writes are compared, from the import of torch on, and every draw from a
    generator is followed to its seed. What differs is followed back from losses, gradients and parameters to the first
    operator that nothing before it explains. Of a MindSpore program, whose operators are not seen, values of modules,
    gradients, parameters and states are compared.

What to do
    See the line that is named; `hypocenter run --deterministic` imposes seeds and deterministic algorithms.

When it is wrong
    What runs inside a compiled region or in a kernel of your own is one thing from outside.
"""

from __future__ import annotations

from dataclasses import replace

from hypocenter.compare.engine import compare_runs
from hypocenter.compare.judged_steps import Options
from hypocenter.compare.repeats.engine import compare_repeats
from hypocenter.compare.sentences import place
from hypocenter.record.reader import open_run
from hypocenter.twins.answer import Twin
from hypocenter.twins.bits import in_bits, recording_bits
from hypocenter.twins.change import Asked, change
from hypocenter.twins.judging import Judged, answer
from hypocenter.twins.options import recording


@change("nothing", order=1)
def nothing(asked: Asked) -> Twin:
    """Run the program twice in the same way and compare all operators."""
    config = recording_bits(asked.steps, deterministic=asked.deterministic, seed=asked.seed)
    first = asked.runs.make("run-1", config)
    if first.refused:
        return _by_values(asked)
    made = [first, asked.runs.make("run-2", config)]
    return in_bits(compare_repeats([one.directory for one in made]), made)


def _by_values(asked: Asked) -> Twin:
    """Compare two runs by what their steps compute: the operators of this program are not seen."""
    config, what = recording(asked, asked.steps), "run again in the same way"
    first, again = (asked.runs.make(f"values-{n}", config).recorded() for n in (1, 2))
    runs = open_run(first.directory), open_run(again.directory)
    judged = Judged(comparison=compare_runs(*runs, options=Options(shift=0, is_exact=True)), is_exact=True)
    found = answer(judged, (first, again), what)
    if found.first is None:
        return found
    facts, at = runs[0].facts(), found.first
    is_seeded = facts is None or facts.settings.get("seed") is not None
    return replace(
        found,
        sentence=f"differs: {what}, the first to part is step {at.step}, {at.phase}: {place(at.site, at.port)}",
        fix=found.fix if is_seeded else "call mindspore.set_seed, or add --deterministic",
    )
