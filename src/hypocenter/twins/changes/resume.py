"""Stopped and resumed from its own checkpoint, the program goes on as if it had never been stopped.

What it means
    A checkpoint that leaves something out is not noticed: the loss goes on falling. But the optimizer begins without
    its moments, the schedule warms up again, the model sees the first batches twice and the last ones never.

How it is decided
    The program runs until step K, where it is ended in the middle of that step. It is started again with the words that
    make it resume, and once more from the start without a stop. The step that it resumes at is the one whose parameters
    are those that the resumed run begins with. There everything that a step begins with is compared: parameters,
    optimizer state, batch, learning rate, loss scale, random states; after it every module and gradient.

What to do
    Save and load what is named. Give `--stop-at K`, and `--resume-args "--resume {folder}/last.pt"`: `{folder}` stands
    for a folder of the run's own, wherever it is written. `--checkpoint PATH` hands PATH to `Trainer.train` of
    Transformers (`resume_from_checkpoint`) or to `Trainer.fit` of Lightning (`ckpt_path`).

When it is wrong
    Where the program draws its order of data from the time, or means to begin a new epoch when it is resumed. A program
    that does not repeat itself is not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypocenter.compare.sentences import place
from hypocenter.errors import ConfigError
from hypocenter.record.reader import open_run
from hypocenter.twins.answer import Place, Restored, Twin
from hypocenter.twins.change import Asked, change
from hypocenter.twins.judging import answer, is_repeated, judge
from hypocenter.twins.options import recording
from hypocenter.twins.runs import FOLDER, Made, ProgramFailedError
from hypocenter.twins.state import KINDS, State, are_empty, n_equal, restored, states_of, steps_with, streams_used

_HOW = "say how the program resumes: --resume-args '--resume PATH', or --checkpoint PATH"
_CAUSES = {
    "parameters": "parameters-not-restored",
    "optimizer state": "optimizer-state-not-restored",
    "batch": "data-not-continued",
    "learning rate": "schedule-not-restored",
    "loss scale": "loss-scaler-not-restored",
    "random state": "random-state-not-restored",
}
_FIXES = {
    "parameters": "save model.state_dict() after the update, and load all of it",
    "optimizer state": "save optimizer.state_dict() and load it after the optimizer is made",
    "batch": "save how many batches were taken and the state of the sampler, and skip that many",
    "learning rate": "save scheduler.state_dict() and load it after the scheduler is made",
    "loss scale": "save scaler.state_dict() and load it",
    "random state": "save torch.get_rng_state(), random.getstate() and numpy's, and set them after everything is made",
}
_BEGAN_LATER = Twin(
    status="cannot-tell",
    sentence="cannot tell: the run that was not to be interrupted did not begin at the start",
    why=("its optimizer has a state before its first update: it found a checkpoint",),
    fix=f"give each run a folder of its own: write {FOLDER} for it in the program's words",
)


@change("resume", order=2)
def resume(asked: Asked) -> Twin:
    """Make three runs, stopped, resumed and not interrupted, and compare them."""
    if asked.stop_at is None:
        raise ConfigError(
            "nobody says where the program is to be stopped",
            where="hypocenter twin resume",
            fix="add --stop-at K: a step after one that the program saves",
        )
    last = asked.stop_at + asked.steps
    stopped = asked.runs.make("stopped", recording(asked, asked.stop_at + 1), folder="interrupted").recorded()
    n_steps = states_of(open_run(stopped.directory), frozenset())[-1].step
    if n_steps < asked.stop_at:
        raise ConfigError(
            f"the program ended by itself after step {n_steps}",
            where=f"--stop-at {asked.stop_at}",
            fix=f"give a step before: --stop-at {max(1, n_steps - asked.steps)}",
        )
    handed = (f"resume={_path(asked)}",) if asked.checkpoint else ()
    resumed = asked.runs.make(
        "resumed", recording(asked, asked.steps, change=handed), words=asked.second_words, folder="interrupted"
    ).recorded()
    if handed and "resume" not in resumed.noted:
        raise ProgramFailedError(
            "nothing took the checkpoint",
            where=f"--checkpoint {asked.checkpoint}",
            why="no Trainer of Transformers or Lightning was called without a checkpoint of its own",
            fix=_HOW,
        )
    whole = asked.runs.make("uninterrupted", recording(asked, last + 1)).recorded()
    return _answer(_Resumed(stop_at=asked.stop_at, whole=whole, stopped=stopped, resumed=resumed))


def _path(asked: Asked) -> str:
    return asked.checkpoint.replace(FOLDER, str(asked.runs.base.absolute() / "interrupted.files"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resumed:
    """The three runs: not interrupted, stopped, and resumed."""

    stop_at: int
    whole: Made
    stopped: Made
    resumed: Made

    @property
    def runs(self) -> tuple[Made, ...]:
        return self.whole, self.stopped, self.resumed


def _answer(of: _Resumed) -> Twin:
    whole, stopped, resumed = (open_run(made.directory) for made in of.runs)
    used = streams_used(whole, stopped)
    states, later = (states_of(run, used) for run in (whole, resumed))
    if not are_empty(states[0].of("optimizer state")):
        return _BEGAN_LATER
    repeats = is_repeated(whole, stopped)  # over the steps that both have
    at = _step_of(states, later[0], of.stop_at)
    right = next(one for one in states if one.step == at)
    table = tuple(restored(right, later[0], lambda kind: _how(kind, states, later[0], at)))
    shift = later[0].step - at
    judged = judge(of.whole, of.stopped, of.resumed, is_exact=True, shift=shift)
    found = answer(judged, of.runs, f"resumed at step {at}")
    found = replace(found, restored=table)
    if not repeats:
        table = tuple(row for row in table if row.what not in ("parameters", "optimizer state"))
    wrong = [row for row in table if row.verdict in ("differs", "missing")]
    if wrong and (wrong[0].what != "random state" or _is_random(found)):
        return _not_restored(found, wrong, states, later[0], at)
    if found.status == "differs" and found.first is not None:
        loose = judge(of.whole, of.stopped, of.resumed, is_exact=False, shift=shift)
        if not loose.is_apart and loose.comparison.status == "same":
            return replace(answer(loose, of.runs, f"resumed at step {at}"), restored=table)
        return _later(found, at, is_drawn=bool(wrong))
    if at == 0 < of.stop_at:
        return replace(
            found,
            status="differs",
            cause="not-resumed",
            confidence="proven",
            fix=_HOW,
            first=Place(step=0),
            sentence="differs: when it was started again the program did not resume, but began at step 0",
        )
    if found.status == "same":
        kinds = ", ".join(row.what for row in table if row.verdict == "equal")
        notes = tuple(f"{_line(row)}; nothing that was compared depends on it" for row in wrong)
        return replace(found, why=(f"equal at step {at}: {kinds}", *found.why), notes=(*notes, *found.notes))
    return found


def _is_random(found: Twin) -> bool:
    """Return whether what parts first may come from random numbers: neither a learning rate nor a batch."""
    return found.first is not None and not _is_rate(found.first) and found.first.phase != "data"


def _step_of(states: Sequence[State], first: State, stop_at: int) -> int:
    """Return the step that the resumed run begins with: that of its parameters, or of its optimizer's state.

    What is not loaded is as it is at step 0, which any fresh start has: whatever says a later step knows better.
    Nothing later than the stop can have been saved.
    """
    known = [one for one in states if one.step <= stop_at]
    for kinds in (("parameters", "optimizer state"), ("batch", "learning rate")):
        one, other = (set(steps_with(known, kind, first.of(kind))) for kind in kinds)
        at = max(one & other or one | other, default=0)
        if at:
            return at
    best = max(known, key=lambda one: n_equal(one.of("parameters"), first.of("parameters")))
    return best.step


def _how(kind: str, states: Sequence[State], first: State, at: int) -> str:
    """Say in words how a kind of state differs; "" if nothing more is known."""
    theirs = first.of(kind)
    if not theirs:
        return "the resumed run has none"
    if kind == "batch":
        there = _nearest(steps_with(states, kind, theirs), at)
        return (
            "it is none that the other run has had"
            if there is None
            else f"it is that of step {there}, {_way(there - at)}"
        )
    if kind in ("learning rate", "loss scale"):
        mine = next(one.of(kind) for one in states if one.step == at)
        begins = ", with which training begins" if states[0].of(kind) == theirs else ""
        return f"{theirs.get(kind)} in place of {mine[kind]}{begins}"
    return "as training begins" if states[0].of(kind) == theirs else ""


def _nearest(steps: Sequence[int], at: int) -> int | None:
    """Return the nearest of the steps that had such a batch (without shuffling each epoch has it again), or None."""
    return min(steps, key=lambda step: abs(step - at), default=None)


def _way(by: int) -> str:
    return f"{abs(by)} step{'s' if abs(by) != 1 else ''} {'ahead' if by > 0 else 'back'}"


def _not_restored(found: Twin, wrong: Sequence[Restored], states: Sequence[State], first: State, at: int) -> Twin:
    """Return the answer where something that a step begins with is not what it was."""
    worst = min(wrong, key=lambda row: KINDS.index(row.what))
    cause, fix = _CAUSES[worst.what], _FIXES[worst.what]
    if worst.what == "batch":
        cause, fix = _of_batch(wrong, states, first, at, cause, fix)
    if all(first.of(kind) == states[0].of(kind) for kind in ("parameters", "optimizer state", "batch")):
        cause, fix = "not-resumed", _HOW
    lines = tuple(_line(row) for row in wrong if row is not worst)
    then = found.first
    if then is not None:
        lines += (f"then {then.phase}: {place(then.site, then.port)} of step {then.step}",)
    phase = {"parameters": "param", "batch": "data", "random state": "data"}.get(worst.what, "optimizer")
    return replace(
        found,
        status="differs",
        cause=cause,
        confidence="proven",
        fix=fix,
        why=lines,
        sentence=f"differs: resumed at step {at}, {_line(worst)}",
        first=Place(step=at, phase=phase, site=worst.first),
    )


def _line(row: Restored) -> str:
    """Describe a row in words, as in `the optimizer state is not there`."""
    subject = row.what if row.what == "parameters" else f"the {row.what}"
    verb = "are" if row.what == "parameters" else "is"
    count = f" in {row.n - row.n_equal:,} of {row.n:,}, the first {row.first}" if row.n > 1 else ""
    if row.verdict == "missing":
        return f"{subject} {verb} not there"
    return f"{subject} {verb} not what {'they were' if verb == 'are' else 'it was'}{count}" + (
        f": {row.said}" if row.said else ""
    )


def _of_batch(
    wrong: Sequence[Restored], states: Sequence[State], first: State, at: int, cause: str, fix: str
) -> tuple[str, str]:
    steps = steps_with(states, "batch", first.of("batch"))
    there = _nearest(steps, at)
    if 0 in steps:
        return "data-restarted", fix
    if there is not None:
        skipped = "skips" if there > at else "repeats"
        return "wrong-step", f"the resumed run {skipped} data: count the steps that were done, and skip as many batches"
    if any(row.what == "random state" for row in wrong):
        return "data-order", "save the state of the generator that shuffles, and of the others, and set them again"
    return cause, fix


def _is_rate(first: Place) -> bool:
    return first.phase == "optimizer" and (first.site == "lr" or first.site.startswith("lr."))


def _later(found: Twin, at: int, *, is_drawn: bool) -> Twin:
    """Explain a difference that comes after all that was seen was restored, but perhaps random states."""
    first = found.first
    assert first is not None
    if first.phase == "data" and is_drawn:
        return replace(found, cause="data-order", fix=_FIXES["random state"], confidence="likely")
    kind = "learning rate" if _is_rate(first) else "batch" if first.phase == "data" else ""
    if kind:
        return replace(found, cause=_CAUSES[kind], fix=_FIXES[kind], confidence="likely")
    return replace(
        found,
        cause="hidden-state",
        why=(f"all that step {at} begins with was seen to be equal", *found.why),
        fix="look for what the named place keeps between steps and the checkpoint leaves out",
    )
