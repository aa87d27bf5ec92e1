"""What lay in memory before it was written changes nothing.

What it means
    `torch.empty` and its kin give memory as it is, mostly zeros. A program that reads some of it before it is written
    computes with whatever lay there: it works for long, and fails on another machine, or on the first large batch.

How it is decided
    Twice under deterministic algorithms: fresh memory as it is, and filled (NaN, the largest integer) by torch itself.
    The bits of what every operator reads and writes are compared, from the import of torch on. What is filled and never
    read does not count: only what reaches a loss, a gradient or a parameter.

What to do
    Use `torch.zeros`, or write the part that is named before it is read.

When it is wrong
    Memory that does not come from torch (NumPy, extensions of your own) is not filled.
"""

from __future__ import annotations

from dataclasses import replace

from hypocenter.compare.repeats.engine import compare_repeats
from hypocenter.twins.answer import Twin
from hypocenter.twins.bits import in_bits, recording_bits
from hypocenter.twins.change import Asked, change
from hypocenter.twins.judging import NotRepeatableError
from hypocenter.twins.runs import NotApplicableError


@change("poison", order=6)
def poison(asked: Asked) -> Twin:
    """Compare fresh memory as it is with fresh memory that is filled."""
    make = asked.runs.make
    plain, filled = (
        recording_bits(asked.steps, deterministic=True, seed=asked.seed, change=(f"poison={value}",))
        for value in ("off", "on")
    )
    runs = [make(name, plain, words=asked.first_words).recorded() for name in ("as-it-is", "as-it-is-again")]
    own = compare_repeats([run.directory for run in runs])
    if own.status == "differs" and (own.first is None or own.first.cause != "undefined-memory"):
        raise NotRepeatableError(
            "the program does not repeat itself",
            where="two runs as they are",
            why=own.sentence,
            fix="find out more with `hypocenter twin nothing`",
        )
    runs.append(make("filled", filled, words=asked.second_words))
    if "poison" not in runs[2].noted:
        raise NotApplicableError("fresh memory was not filled", where="hypocenter twin poison", why="it is torch's own")
    found = in_bits(compare_repeats([runs[0].directory, runs[2].directory]), runs)
    if found.status == "same":
        return replace(found, sentence=found.sentence.replace("same: ", "same: with fresh memory filled, ", 1))
    if found.status == "differs" and found.first is not None:
        return replace(
            found,
            cause="uninitialised-read",
            sentence=found.sentence.replace("differs: ", "differs: with fresh memory filled, ", 1),
            fix=found.fix or "write it before it is read: torch.zeros in place of torch.empty",
        )
    return found
