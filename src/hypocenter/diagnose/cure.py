"""What `hypocenter cure` answers: `hypocenter.cure/1`, from the evidence of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from hypocenter.diagnose.evidence import Alternative, Cure
from hypocenter.diagnose.judged_evidence import JudgedEvidence
from hypocenter.nouns import Source

Status = Literal["cured", "no-cure", "cannot-tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The smallest float32 island that makes a failed step finite. Steps and ranks count from 0."""

    SPELLS_OUT: ClassVar = False
    schema: Literal["hypocenter.cure/1"] = "hypocenter.cure/1"
    status: Status
    targets: Annotated[
        tuple[str, ...],
        Meta(
            description="Module paths, in execution order; the empty string is the model itself; "
            "file:line for loss code."
        ),
    ] = ()
    action: Annotated[str, Meta(description="fp32-island: what to do with the targets.")] = "fp32-island"
    verified: Annotated[
        bool,
        Meta(
            description="The failed step was replayed with exactly these targets, and loss and all gradients were "
            "finite."
        ),
    ] = False
    replays: Annotated[int, Meta(ge=0, description="Replays of the step that the search took.")] = 0
    run: str = ""
    bundle: Annotated[str | None, Meta(description="Path below the run directory.")] = None
    step: int | None = None
    rank: int | None = None
    microbatches: Annotated[int, Meta(description="Of the step, all replayed.")] = 0
    parameters: Annotated[int, Meta(description="Gradients that were looked at.")] = 0
    loss_scale: Annotated[float | None, Meta(description="Of the replays; null without a scaler.")] = None
    cast_back: Annotated[
        bool,
        Meta(description="The targets' results go back to the low precision; false: they stay float32."),
    ] = True
    minimal: Annotated[bool, Meta(description="Without any one of the targets the step was not finite.")] = False
    candidates: Annotated[int, Meta(description="Modules that the search chose from.")] = 0
    seconds: float = 0.0
    lines: Annotated[tuple[Source, ...], Meta(description="Source lines that suffice in float32 alone.")] = ()
    ops: Annotated[
        tuple[str, ...], Meta(description="Single functions within the target that suffice: attn:matmul.")
    ] = ()
    api: Annotated[str, Meta(description="The cure as one line of Python.")] = ""
    patch: Annotated[
        str,
        Meta(
            description="The cure as a unified diff of the user's source, to be read before it is applied; "
            "may be empty."
        ),
    ] = ""
    patch_verified: Annotated[
        bool, Meta(description="The failed step was replayed with the patch in place, and was finite.")
    ] = False
    patch_note: Annotated[str, Meta(description="Why there is no patch, or what it changes beyond the targets.")] = ""
    alternatives: tuple[Alternative, ...] = ()
    cause: Annotated[str | None, Meta(description="Of the finding.")] = None
    title: str = ""
    advice: Annotated[str, Meta(description="What else to change where there is no cure.")] = ""
    why: tuple[str, ...] = ()


def chosen(pieces: Sequence[JudgedEvidence]) -> JudgedEvidence | None:
    """Return the failure to cure: one that is cured, else searched, else any; errors and early steps first."""
    ranking = {"cured": 0, "no-cure": 1, "cannot-tell": 2}

    def order(piece: JudgedEvidence) -> tuple[int, bool, int, int]:
        cure = piece.evidence.cure
        rank = ranking[cure.status] if cure is not None else 3
        return rank, piece.finding.severity != "error", piece.finding.step, piece.finding.rank

    return min(pieces, key=order, default=None)


def needs_search(piece: JudgedEvidence | None) -> bool:
    """Return whether a rerun with a full search could tell more than the recording; not where nothing failed."""
    if piece is None:
        return False
    return piece.evidence.cure is None or piece.evidence.cure.status == "cannot-tell"


def answer(run: str, piece: JudgedEvidence | None, why: Sequence[str] = ()) -> Answer:
    """Return what the recording says about a cure.

    Args:
        run: the recording's name.
        piece: the failure; None: there is none.
        why: more reasons for not knowing.
    """
    if piece is None:
        return Answer(status="cannot-tell", run=run, why=(*why, "no step of this recording failed and was examined"))
    evidence, finding = piece.evidence, piece.finding
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
