"""The stages one after another, until one fails."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import msgspec

from hypocenter.align import children, fingerprint
from hypocenter.align.alignment import STAGES, Alignment, ProgramFailedError, StageResult, Status, result
from hypocenter.align.context import Context
from hypocenter.align.fingerprint import digest_of
from hypocenter.align.plan import Plan, Widening
from hypocenter.align.recordings import Recordings, Tell, silent
from hypocenter.catalogue import Catalogue, having
from hypocenter.errors import HypocenterError
from hypocenter.record.whole_file import write_whole

JUDGES: Catalogue[ModuleType] = Catalogue("hypocenter.align.stages", entry=having("judge"))
"""By the names of STAGES, with _ for a space."""
WIDENED = (1, 2, 3, 4)
"""Stages of each widening."""
_EXACT = ("seed", "deterministic", "dropout", "weights", "budget", "map")
_RELEVANT: dict[int, tuple[str, ...]] = {
    0: (), 1: (*_EXACT, "lr", "steps"), 2: (*_EXACT, "lr", "steps"), 3: (*_EXACT, "lr", "steps"),
    4: (*_EXACT, "lr", "steps"), 5: (*_EXACT, "steps", "frozen_steps", "repeats"),
    6: (*_EXACT, "steps", "long_steps", "repeats"), 7: (*_EXACT, "steps", "long_steps", "repeats"),
    8: (*_EXACT, "lr", "steps", "frozen_steps", "long_steps", "repeats"),
}  # fmt: skip
"""Options of [stages] that a stage depends on."""
_KEPT = ("passed", "failed", "skipped")  # verdicts that hold until something changes


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How an alignment is done.

    Attributes:
        start: runs a command.
        tell: says what goes on, a line at a time.
        again_from: this stage and those after it are done again, whatever was found before.
        stages: numbers of those that are done at all.
        folder: where results are kept; that of the plan when None.
        recordings: where recordings are kept; `runs` in the plan's folder when None. Plans may share one.
    """

    start: children.Start = children.start
    tell: Tell = silent
    again_from: int | None = None
    stages: Iterable[int] = range(len(STAGES))
    folder: Path | None = None
    recordings: Path | None = None


def align(plan: Plan, how: How | None = None) -> Alignment:
    """Go through the stages of a plan; stop at the first that fails.

    Raises:
        HypocenterError: the map of the plan cannot be read.
        OSError: results cannot be written.
    """
    how = how or How()
    state = state_of(plan, how)
    results: dict[int, StageResult] = {}
    context = Context(
        plan=plan, recordings=state.recordings, earlier=results,
        align_widened=lambda wide: align(*_widened(plan, wide, how, state.folder)),
    )  # fmt: skip
    ended = False
    for stage, name in enumerate(STAGES):
        if ended or stage not in how.stages:
            results[stage] = result(stage, "not-run", "")
            continue
        how.tell(f"stage {stage}, {name}")
        results[stage] = _of_stage(stage, context, state, how)
        how.tell(f"   {results[stage].verdict}: {results[stage].sentence}")
        ended = results[stage].verdict == "failed" or _is_broken(results[stage])
    return alignment_of(plan, list(results.values()))


def status_of(plan: Plan) -> Alignment:
    """Return what was found until now, without a run; stages whose programs or options changed do not count."""
    state = state_of(plan, How())
    results: list[StageResult] = []
    notes: list[str] = []
    for stage in range(len(STAGES)):
        found = state.load(stage)
        if found is None:
            results.append(result(stage, "not-run", ""))
        elif found.verdict in ("passed", "failed", "skipped") and not state.holds(found, stage):
            results.append(result(stage, "not-run", f"{found.verdict} before something changed: it will be done again"))
        else:
            results.append(found)
    return replace(alignment_of(plan, results), notes=tuple(notes))


def state_of(plan: Plan, how: How) -> State:
    """Return the state of a plan: the folders of its results and recordings."""
    folder = how.folder or plan.state
    recordings = Recordings(plan=plan, folder=how.recordings or plan.state / "runs", start=how.start, tell=how.tell)
    return State(plan=plan, folder=folder, recordings=recordings)


def alignment_of(plan: Plan, results: list[StageResult]) -> Alignment:
    """Put the results of all stages together to an answer."""
    failed = next((one for one in results if one.verdict == "failed"), None)
    counted = {word: [one for one in results if one.verdict == word] for word in ("passed", "skipped", "cannot-tell")}
    doubts, passed = counted["cannot-tell"], counted["passed"]
    status: Status = "aligned"
    if failed is not None:
        status, sentence = "stopped", f"stopped at stage {failed.stage}, {failed.name}: {failed.sentence}"
    elif doubts or not passed or any(one.verdict == "not-run" for one in results if one.stage in WIDENED):
        status = "cannot-tell"
        numbers = ", ".join(str(one.stage) for one in doubts)
        sentence = (
            f"cannot tell: stage {numbers} could not be decided" if doubts else "cannot tell: not all stages were done"
        )
        sentence += f": {doubts[0].sentence}" if len(doubts) == 1 else ""
    else:
        left = [one for one in results if one.verdict != "passed"]
        more = f"; not done: {', '.join(f'{one.stage} {one.name}' for one in left)}" if left else ""
        sentence = f"aligned: {len(passed)} stages passed{more}"
    return Alignment(
        status=status, sentence=sentence, plan=str(plan.path), stage=failed.stage if failed is not None else None,
        stages=tuple(results),
    )  # fmt: skip


def _of_stage(stage: int, context: Context, state: State, how: How) -> StageResult:
    if stage in context.plan.stages.skip:
        return result(stage, "skipped", "the plan skips it")
    kept = state.load(stage)
    is_wanted = how.again_from is not None and stage >= how.again_from
    if kept is not None and not is_wanted and state.holds(kept, stage):
        return kept
    began = time.monotonic()
    context.recordings.used.clear()
    try:
        found = JUDGES.entries()[STAGES[stage].replace(" ", "_")].judge(context)
    except HypocenterError as error:
        found = _unable(stage, error)
    found = replace(
        found, seconds=round(time.monotonic() - began, 2), fingerprint=state.fingerprint(stage),
        runs=tuple(context.short(path) for path in context.recordings.used),
    )  # fmt: skip
    state.store(found)
    return found


def _unable(stage: int, error: HypocenterError) -> StageResult:
    figures = {"error": error.slug, "ends": isinstance(error, ProgramFailedError)}
    why = tuple(filter(None, (error.why, error.where)))
    return result(stage, "cannot-tell", error.what, why=why, next=(error.fix,) if error.fix else (), figures=figures)


def _is_broken(found: StageResult) -> bool:
    """Return whether a program failed, so that the next stages would start it in vain."""
    return found.verdict == "cannot-tell" and bool(found.figures.get("ends"))


def _widened(plan: Plan, wide: Widening, how: How, folder: Path) -> tuple[Plan, How]:
    inner = replace(
        how, stages=WIDENED, folder=folder / f"widening-{digest_of(wide.name, wide.baseline, wide.candidate)}",
        tell=lambda text: how.tell(f"   {text}"),
    )  # fmt: skip
    return plan.widened(wide), inner


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The kept results of one plan, or of one widening of it."""

    plan: Plan
    folder: Path
    recordings: Recordings

    def fingerprint(self, stage: int) -> str:
        """Return digits that change with anything a stage rests on."""
        plan = self.plan
        options = {name: getattr(plan.stages, name) for name in _RELEVANT[stage]}
        sides = (plan.baseline, plan.candidate)
        files = [plan.folder / name for side in sides for name in side.config] if stage == 0 else []
        files += [plan.folder / log for side in sides for log in side.logs.values()] if stage > 4 else []
        files += [plan.folder / plan.stages.map] if plan.stages.map else []
        wide = [(one.name, one.baseline, one.candidate) for one in plan.widening] if stage == 8 else []
        programs = [self.recordings.fingerprint("baseline"), self.recordings.fingerprint("candidate")] if stage else []
        return fingerprint.digest_of(stage, options, programs, fingerprint.of_files(files), wide)

    def load(self, stage: int) -> StageResult | None:
        """Return what was found before, whether it still holds or not; None when nothing can be read."""
        try:
            return msgspec.json.decode(self._path(stage).read_bytes(), type=StageResult)
        except (OSError, ValueError, RecursionError):
            return None

    def holds(self, found: StageResult | None, stage: int) -> bool:
        """Return whether a result still belongs to what the plan is now."""
        return found is not None and found.verdict in _KEPT and found.fingerprint == self.fingerprint(stage)

    def store(self, found: StageResult) -> None:
        """Write a result to its file, as a whole. Raises OSError."""
        path = self._path(found.stage)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(found), indent=2))

    def _path(self, stage: int) -> Path:
        return self.folder / f"stage-{stage}.json"
