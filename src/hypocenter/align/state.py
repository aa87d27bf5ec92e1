"""Results of stages on disk, below `<plan>.align/`: what still holds is not done again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hypocenter.align import fingerprint
from hypocenter.align.alignment import StageResult
from hypocenter.align.plan import Plan
from hypocenter.align.recordings import Recordings

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
class State:
    """Of one plan (or one widening of it)."""

    plan: Plan
    folder: Path
    recordings: Recordings

    def fingerprint(self, stage: int) -> str:
        """Of all that a stage rests on."""
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
        """What was found before, whether it still holds or not; None when there is nothing that can be read."""
        try:
            return msgspec.json.decode(self._path(stage).read_bytes(), type=StageResult)
        except (OSError, ValueError, RecursionError):
            return None

    def holds(self, found: StageResult | None, stage: int) -> bool:
        """Whether a result is of what the plan is now."""
        return found is not None and found.verdict in _KEPT and found.fingerprint == self.fingerprint(stage)

    def store(self, found: StageResult) -> None:
        """Put a result in place whole. Raises OSError."""
        path = self._path(found.stage)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}-{os.getpid()}")
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2))
        unfinished.replace(path)

    def _path(self, stage: int) -> Path:
        return self.folder / f"stage-{stage}.json"
