"""The number of threads changes nothing but rounding.

What it means
    Threads split sums, so that they are formed in another order. More than that is a race: code of your own that writes
    from several threads, an operator that is wrong at the edge of its parts, a library that is not safe to share.

How it is decided
    The program with its own number of threads against one (two, if its own is one; `threads=N`: against N). Every value
    may differ by rounding, whose size replays measure.

What to do
    Run the module that is named by itself, with both numbers.

When it is wrong
    Values that are picked (top-k, argmax, sampling) flip where two are nearly equal.
"""

from __future__ import annotations

import os
from dataclasses import replace

from hypocenter.record.reader import open_run
from hypocenter.twins.answer import Twin
from hypocenter.twins.change import Asked, change
from hypocenter.twins.judging import answer, judge
from hypocenter.twins.options import recording
from hypocenter.twins.runs import Made, NotApplicableError

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@change("threads", order=5, values="N")
def threads(asked: Asked) -> Twin:
    """Compare the program's own number of threads with another."""
    given = asked.number(0)
    config, make = recording(asked, asked.steps, calibrated=True), asked.runs.make
    own = make("own-threads", config, words=asked.first_words).recorded()
    again = make("own-threads-again", config, words=asked.first_words)
    n_own = _n_threads(own)
    number = given or (1 if n_own != 1 else 2)
    if number > (os.cpu_count() or number):
        raise NotApplicableError("there are not so many cores", where=f"threads={number}")
    other = make(
        "other-threads",
        replace(config, change=(f"threads={number}",), calibrate="never"),
        words=asked.second_words,
        variables=dict.fromkeys(_VARIABLES, str(number)),
    ).recorded()
    n_other = _n_threads(other)
    if n_own == n_other:
        raise NotApplicableError(
            "the number of threads is the same in both runs",
            where="hypocenter twin threads",
            why=f"{n_own}: the program sets it itself, or it was that already",
        )
    judged = judge(own, again, other, is_exact=False)
    found = answer(judged, (own, again, other), f"with {n_other} threads in place of {n_own}")
    if found.status != "differs":
        return found
    return replace(
        found,
        cause="thread-dependence",
        confidence="possible",
        fix="run what is named by itself with both numbers; look for parts that are divided by the number of threads",
    )


def _n_threads(made: Made) -> object:
    facts = open_run(made.directory).facts()
    return facts.settings.get("num_threads") if facts is not None else None
