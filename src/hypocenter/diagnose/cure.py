"""What `hypocenter cure` answers: `hypocenter.cure/1`, published beside this file, from the evidence of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hypocenter import json_answer
from hypocenter.diagnose.evidence import Alternative, Cure
from hypocenter.diagnose.exhibits import Exhibit
from hypocenter.nouns import Source

SCHEMA = "hypocenter.cure/1"
SCHEMA_FILE = Path(__file__).with_name("cure.schema.json")
Status = Literal["cured", "no-cure", "cannot-tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The cure of one failed step, with where it was found. Field names are JSON keys."""

    schema: str = SCHEMA
    status: Status
    targets: tuple[str, ...] = ()
    action: str = "fp32-island"
    verified: bool = False
    replays: int = 0
    run: str = ""
    bundle: str | None = None  # path below the run directory
    step: int | None = None
    rank: int | None = None
    microbatches: int = 0
    parameters: int = 0
    loss_scale: float | None = None
    cast_back: bool = True
    minimal: bool = False
    candidates: int = 0
    seconds: float = 0.0
    lines: tuple[Source, ...] = ()
    ops: tuple[str, ...] = ()
    api: str = ""
    patch: str = ""
    patch_verified: bool = False
    patch_note: str = ""
    alternatives: tuple[Alternative, ...] = ()
    cause: str | None = None  # what the diagnosis says of this step
    title: str = ""
    advice: str = ""  # what else to change, where there is no cure
    why: tuple[str, ...] = ()


def chosen(exhibits: Sequence[Exhibit]) -> Exhibit | None:
    """The failure to cure: one that is cured, else one that was searched, else any; errors and early steps first."""
    ranking = {"cured": 0, "no-cure": 1, "cannot-tell": 2}

    def order(exhibit: Exhibit) -> tuple[int, bool, int, int]:
        cure = exhibit.evidence.cure
        rank = ranking[cure.status] if cure is not None else 3
        return rank, exhibit.finding.severity != "error", exhibit.finding.step, exhibit.finding.rank

    return min(exhibits, key=order, default=None)


def needs_search(exhibit: Exhibit | None) -> bool:
    """Whether a rerun with a full search could tell more than the recording; not where nothing failed."""
    if exhibit is None:
        return False
    return exhibit.evidence.cure is None or exhibit.evidence.cure.status == "cannot-tell"


def answer(run: str, exhibit: Exhibit | None, why: Sequence[str] = ()) -> Answer:
    """What the recording says about a cure.

    Args:
        run: the recording's name.
        exhibit: the failure; None: there is none.
        why: more reasons for not knowing.
    """
    if exhibit is None:
        return Answer(status="cannot-tell", run=run, why=(*why, "no step of this recording failed and was examined"))
    evidence, finding = exhibit.evidence, exhibit.finding
    reason = evidence.why_not or "no cure was searched when the step failed"
    cure = evidence.cure or Cure(status="cannot-tell", why=(reason,))
    remedy = finding.remedy
    return Answer(
        status=cure.status,
        targets=cure.targets,
        action=cure.action,
        verified=cure.verified,
        replays=cure.replays,
        run=run,
        bundle=finding.bundle,
        step=evidence.step,
        rank=finding.rank,
        microbatches=cure.n_microbatches,
        parameters=cure.n_params,
        loss_scale=cure.scale,
        cast_back=cure.cast_back,
        minimal=cure.minimal,
        candidates=cure.n_candidates,
        seconds=cure.seconds,
        lines=cure.lines,
        ops=cure.ops,
        api=cure.api,
        patch=cure.patch,
        patch_verified=cure.patch_verified,
        patch_note=cure.patch_note,
        alternatives=cure.alternatives,
        cause=finding.cause,
        title=finding.title,
        advice=remedy.text if remedy is not None and not cure.verified else "",
        why=(*cure.why, *why),
    )


def to_json(found: Answer) -> str:
    """The answer as indented JSON with a final newline."""
    return json_answer.to_json(asdict(found), spell_out=False)


def published() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) that every answer validates against."""
    return json_answer.published(SCHEMA_FILE)
