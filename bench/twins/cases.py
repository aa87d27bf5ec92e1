"""What is planted, in which program, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OURS = Path(__file__).parent / "programs"
TESTS = Path(__file__).parents[2] / "tests" / "twins" / "programs"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program with one fault, or none.

    Attributes:
        kind: resume, compile, accumulation, ranks or workers.
        loop: plain, Transformers or Lightning.
        fault: in words; empty where nothing is planted.
        cause: that is to be said; empty where it is to be the same.
        place: by name, what the first place is to hold; a text is held at the end of a path, or as a whole.
        program: its file and its words.
        options: of the twin.
    """

    kind: str
    loop: str
    fault: str
    cause: str
    program: tuple[str, ...]
    place: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


RESUMED = {
    "optimizer": "optimizer-state-not-restored",
    "scheduler": "schedule-not-restored",
    "rng": "random-state-not-restored",
    "sampler": "data-restarted",
    "data": "data-restarted",
    "epoch": "data-restarted",
    "scaler": "loss-scaler-not-restored",
    "dropout": "random-state-not-restored",
    "weights": "parameters-not-restored",
    "step": "wrong-step",
}
PHASES = {
    "optimizer-state-not-restored": "optimizer",
    "schedule-not-restored": "optimizer",
    "loss-scaler-not-restored": "optimizer",
    "parameters-not-restored": "param",
}
LOOPS = {
    "plain": ("plain.py", "", ("optimizer", "scheduler", "rng", "sampler", "scaler", "weights", "step")),
    "Transformers": ("hf.py", "checkpoint-8", ("optimizer", "scheduler", "rng", "data", "weights", "step")),
    "Lightning": ("pl.py", "step=8.ckpt", ("optimizer", "scheduler", "weights", "epoch", "dropout")),
}
IN_PROGRAM = ("epoch", "dropout")  # faults that are there when it is not resumed too


def _resumed() -> list[Case]:
    found = []
    for loop, (name, checkpoint, faults) in LOOPS.items():
        how: dict[str, Any] = {"stop_at": 9, "steps": 2, "checkpoint": "{folder}/" + checkpoint if checkpoint else ""}
        first = () if checkpoint else ("--resume",)
        for fault in ("", *faults):
            cause = RESUMED.get(fault, "")
            inside = (fault,) if fault in IN_PROGRAM else ()
            words = first if fault in IN_PROGRAM or not fault else (*first, fault)
            found.append(
                Case(
                    kind="resume",
                    loop=loop,
                    fault=fault,
                    cause=cause,
                    program=(str(TESTS / name), "{folder}", *inside),
                    place={"step": (8, 9, 10), "phase": PHASES.get(cause, "data")} if cause else {},
                    options=how | {"second_words": words},
                )
            )
    return found


GRAD = {"step": (0,), "phase": "grad", "site": "0.weight"}
DATA = {"step": (0,), "phase": "data", "site": "batch"}
APART = {"step": (0,), "phase": "optimizer", "site": "0.weight"}
COUNTED = {"phase": "data", "site": ("batch.x", "batch.in[0]")}
DRAWN = {"step": (0,), "phase": "data", "site": "rng"}
HF, PL, LOOP = ((str(OURS / name),) for name in ("hf.py", "pl.py", "loop.py"))
IN_FOLDER = (*HF, "{folder}")


def _divided(kind: str, fault: str, cause: str, place: Mapping[str, Any], name: str, words: tuple[str, ...]) -> Case:
    more = ("--fault", fault) if fault else ()
    program = (str(TESTS / name), *more)
    return Case(
        kind=kind, loop="plain", fault=fault, cause=cause, program=program, place=place, options={"second_words": words}
    )


def _in_trainers(kind: str, fault: str, cause: str, place: Mapping[str, Any]) -> list[Case]:
    word = (fault,) if fault else ()
    smaller: dict[str, Any] = {"second_words": ("--batch", "4")} if kind == "ranks" else {}
    of = {"kind": kind, "fault": fault, "cause": cause, "place": place}
    return [
        Case(loop="Transformers", program=(*IN_FOLDER, *word), **of),
        Case(loop="Lightning", program=(*PL, *word), options=smaller, **of),
    ]


def _compiled(fault: str, loop: str, place: Mapping[str, Any]) -> Case:
    words = (fault,) if fault else ()
    program = {"plain": LOOP, "Transformers": (*IN_FOLDER, "compiled"), "Lightning": (*PL, "compiled")}[loop] + words
    cause = "compile-mismatch" if fault else ""
    return Case(kind="compile", loop=loop, fault=fault, cause=cause, program=program, place=place, options={"steps": 2})


PARTS = ("--batch", "4", "--accumulate", "2")
CASES = (
    *_resumed(),
    *(
        _divided("accumulation", fault, cause, place, "summed.py", PARTS)
        for fault, cause, place in (
            ("", "", {}),
            ("undivided", "accumulation-normalisation", GRAD),
            ("unequal", "split-dependence", GRAD),
            ("stepped", "schedule-counts-micro-batches", {"site": "lr"}),
            ("tail", "split-dependence", GRAD),
        )
    ),
    *_in_trainers("accumulation", "", "", {}),
    *_in_trainers("accumulation", "undivided", "accumulation-normalisation", GRAD),
    *_in_trainers("accumulation", "unequal", "split-dependence", GRAD | {"step": (0, 1)}),  # where halves differ first
    *(
        _divided("ranks", fault, cause, place, "ranked.py", ("--batch", "4"))
        for fault, cause, place in (
            ("", "", {}),
            ("unwrapped", "missing-gradient-sync", APART),
            ("summed", "gradients-summed", GRAD),
            ("shared", "ranks-share-data", DATA),
        )
    ),
    *_in_trainers("ranks", "", "", {}),
    *_in_trainers("ranks", "unwrapped", "missing-gradient-sync", APART),
    *_in_trainers("ranks", "shared", "ranks-share-data", DATA),
    *(
        Case(
            kind="workers",
            loop="plain",
            fault=fault,
            cause=cause,
            program=(str(TESTS / "loaded.py"), "0", fault or "global"),
            place=place,
        )
        for fault, cause, place in (
            ("", "", {}),
            ("copied", "workers-draw-the-same", DRAWN),
            ("fixed", "workers-draw-the-same", {"step": (0,), "phase": "data", "site": "numpy.random"}),
            ("counted", "worker-dependent-data", {"phase": "data", "site": "batch.in[0]"}),
            ("whole", "stream-not-split", {"phase": "data", "site": "batch"}),
        )
    ),
    *_in_trainers("workers", "", "", {}),
    *_in_trainers("workers", "copied", "workers-draw-the-same", DRAWN),
    *_in_trainers("workers", "numbered", "worker-dependent-data", COUNTED),
    *(_compiled("", loop, {}) for loop in ("plain", "Transformers", "Lightning")),
    _compiled("pool", "Transformers", {"op": "avg_pool1d"}),
    _compiled("pool", "plain", {"op": "avg_pool1d"}),
    _compiled("alias", "Lightning", {"op": "add_"}),
    _compiled("region", "plain", {"op": "linear"}),
    _compiled("counted", "plain", {"step": (0, 1), "op": ""}),
    _compiled("decomposition", "Transformers", {"op": "silu"}),
    _compiled("lowering", "Lightning", {"op": "silu"}),
)
