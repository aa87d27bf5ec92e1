"""A compiled program computes what the same program computes uncompiled.

What it means
    `torch.compile` may fuse and reorder, so that values differ by rounding. More than that is an error: of the
    compiler, or of a program whose Python has effects that a graph does not repeat.

How it is decided
    The program as it is against the same with TorchDynamo switched off. Every value outside of compiled regions, and
    all gradients and parameters may differ by rounding. If they differ by more, the program is compiled by less and
    less of the compiler: traced only, then with autograd traced too; the first stage that differs is named. Then the
    first graph that differs is cut shorter and shorter, each time run both ways, forward and backward, until the
    operator that makes the difference is found. Dropout is off in both runs: compiled code draws other random numbers.

What to do
    Take the named module out of the graph (`torch.compiler.disable`) until it is mended, and report it to PyTorch with
    torch's own bisector: `python -m torch._inductor.compiler_bisector run train.py`.

When it is wrong
    Code that asks whether it is being compiled is meant to differ.
"""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec

from hypocenter.compare.sentences import place, power
from hypocenter.twins.answer import Twin
from hypocenter.twins.change import Asked, change
from hypocenter.twins.guilty import Guilty
from hypocenter.twins.judging import Judged, answer, judge
from hypocenter.twins.options import recording
from hypocenter.twins.runs import Made, NotApplicableError

_STAGES = (
    ("eager", "TorchDynamo, which traces the program: it differs without any further stage"),
    ("aot_eager", "AOTAutograd, which traces backward and removes mutations: it differs without a compiler behind it"),
)
_LAST = "the backend (Inductor, unless the program gives another): it does not differ without it"
_OFF = {"TORCHDYNAMO_DISABLE": "1"}
_GUILTY = "guilty"


@change("eager", order=7)
def eager(asked: Asked) -> Twin:
    """Compare the compiled program with itself not compiled, which counts as right."""
    calm, make = replace(recording(asked, asked.steps, calibrated=True), no_dropout=True), asked.runs.make
    compiled = make("compiled", replace(calm, change=("eager=off",), calibrate="never"), words=asked.first_words)
    if not compiled.recorded().noted.get("eager"):
        raise NotApplicableError(
            "the program compiles nothing",
            where="hypocenter twin eager",
            why="TorchDynamo made no graph in the steps that were run",
        )
    plain = replace(calm, change=("eager=on",))
    right = make("eager", plain, words=asked.second_words, variables=_OFF).recorded()
    again = make("eager-again", plain, words=asked.second_words, variables=_OFF)

    def judged(made: Made) -> Judged:
        return judge(right, again, made, is_exact=False)

    found = answer(judged(compiled), (right, again, compiled), "compiled in place of eager")
    if found.status != "differs":
        return found
    stage, backend = _LAST, ""
    for name, words in _STAGES:
        less = make(
            f"compiled-by-{name}", replace(calm, change=(f"eager={name}",), calibrate="never"), words=asked.first_words
        )
        if less.code == 0 and judged(less).is_apart:
            stage, backend = words, name
            break
    found = replace(
        found,
        cause="compile-mismatch",
        confidence="likely",
        why=(f"the stage: {stage}", *found.why),
        fix="keep what is named out of the graph (torch.compiler.disable), and report it",
    )
    if backend == _STAGES[0][0]:  # no operator is computed otherwise
        return found
    asking = f"eager={_GUILTY}" + (f",{backend}" if backend else "")
    return _with_operator(
        found, make("bisected", replace(calm, change=(asking,), calibrate="never"), words=asked.first_words)
    )


def _with_operator(found: Twin, bisected: Made) -> Twin:
    """Add the guilty operator to the answer, where one was found."""
    lines = bisected.noted.get("eager", ())
    found = replace(found, notes=(*found.notes, *(line for line in lines if line.startswith("not bisected"))))
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == _GUILTY and found.first is not None:
            guilty = msgspec.json.decode(rest, type=Guilty)
            where = place(guilty.site) if guilty.site else "what is compiled"
            error = math.inf if guilty.error is None else guilty.error
            apart = f"apart by {power(error)} (noise {power(guilty.noise)})"
            said = (
                f"the operator: {guilty.operator} of {where}, whose {guilty.part} is {apart} "
                f"when the {guilty.n_operators} operators of its graph are compiled up to it"
            )
            return replace(
                found,
                first=replace(found.first, op=guilty.operator, source=guilty.source or found.first.source),
                why=(found.why[0], said, *found.why[1:]),
            )
    return found
