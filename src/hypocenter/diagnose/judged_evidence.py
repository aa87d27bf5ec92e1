"""Evidence files as pieces: decoded, judged, and turned into the finding that each would be on its own."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import FORMAT, Evidence, Verdict
from hypocenter.diagnose.operators import is_of_mindspore
from hypocenter.diagnose.spike_words import followed
from hypocenter.diagnose.verdicts import judge
from hypocenter.nouns import Finding, Phase, Remedy, Severity

TO_MEND = "to mend it: "  # begins a `why` that says what to change
AT_MOST_BYTES = 16 << 20  # an evidence file has a few tens of kilobytes

_CODES = {
    "nonfinite-grad": "HC101", "nonfinite-loss": "HC102", "nonfinite-param": "HC103", "nonfinite-activation": "HC104",
    "nonfinite-output": "HC104", "unused-loss": "HC102", "dead-grad": "HC105", "skipped-step": "HC106",
    "grad-underflow": "HC203", "spike": "HC401", "crash": "HC324",
}  # fmt: skip
_KINDS = {
    "grad-underflow": "underflow",
    "hardware-fault": "hardware",
    "index-out-of-range": "data",
    "dead-gradient": "vanishing",
}
_AT_THE_LEAF = frozenset({"bad-input", "bad-parameter", "data-shifted", "bad-sample", "state-changed"})
_OVERFLOWS = frozenset({"format-overflow", "accumulation-overflow", "exploding-activation"})


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedEvidence:
    """One piece of evidence, the verdict on it, and the finding it makes."""

    evidence: Evidence
    verdict: Verdict
    finding: Finding

    @property
    def is_located(self) -> bool:
        """Whether it says where the failure started, and not only that there was one."""
        if self.evidence.received:
            return False  # it says how the value came here
        return self.evidence.origin is not None or self.evidence.leaf is not None or self.verdict.cause != "unknown"

    @property
    def key(self) -> tuple[str, str | None, str | None, str | None]:
        """What two pieces share when they show the same cause at the same place."""
        f = self.finding
        return f.cause, f.site, f.op, f.port


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """All evidence of a run, by step and rank, and notes about what could not be used."""

    found: tuple[JudgedEvidence, ...] = ()
    notes: tuple[str, ...] = ()


def load(files: Iterable[tuple[int, Path]], run: Path) -> RunEvidence:
    """Read every evidence file; what cannot be trusted becomes a note."""
    found: list[JudgedEvidence] = []
    notes: list[str] = []
    for rank, path in files:
        name = _relative(path.parent, run)
        try:
            with path.open("rb") as file:
                data = file.read(AT_MOST_BYTES + 1)
            evidence = decode(data)
            piece = judged_piece(evidence, rank=rank, bundle=name)
        except Exception as error:  # hostile or damaged bytes: whatever they set off must stay a note
            notes.append(
                f"the evidence in {name} cannot be used: {str(error).splitlines()[0] if str(error) else error!r}"
            )
            continue
        found.append(piece)
        notes += (f"{name}: {note}" for note in evidence.notes)
    found.sort(key=lambda e: (e.finding.step, not e.is_located, e.finding.rank))
    return RunEvidence(found=tuple(found), notes=tuple(notes))


def decode(data: bytes) -> Evidence:
    """Read evidence from JSON.

    Raises:
        ValueError: too large, not JSON, not evidence, or of a newer format.
    """
    if len(data) > AT_MOST_BYTES:
        raise ValueError(f"it is larger than {AT_MOST_BYTES >> 20} MiB")
    try:
        evidence = _decoder().decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if evidence.format > FORMAT:
        raise ValueError(f"it has format {evidence.format}, this version reads up to {FORMAT}")
    return evidence


@functools.cache
def _decoder() -> msgspec.json.Decoder[Evidence]:
    return msgspec.json.Decoder(Evidence)


def judged_piece(evidence: Evidence, *, rank: int, bundle: str | None = None) -> JudgedEvidence:
    """Judge a piece of evidence and make its finding."""
    verdict = judge(evidence)
    place = _place(evidence, verdict)
    finding = Finding(
        code=_CODES[evidence.trigger],
        kind="spike" if evidence.trigger == "spike" else _KINDS.get(verdict.cause, "nonfinite"),
        severity=_severity(evidence, verdict),
        title=verdict.title,
        step=evidence.step,
        microbatch=evidence.microbatch,
        rank=rank,
        phase=place["phase"],
        site=place["site"],
        port=place["port"],
        param=place["param"],
        samples=_samples(evidence),
        dataset_indices=evidence.dataset_indices if _samples(evidence) else (),
        op=place["op"],
        source=evidence.origin.source if evidence.origin is not None else None,
        cause=verdict.cause,
        limit=verdict.limit,
        actual=verdict.actual,
        why=(*verdict.why, *_to_mend(evidence, verdict)),
        confidence=verdict.confidence,
        then=followed(evidence) if evidence.trigger == "spike" else (),
        remedy=_remedy(evidence, verdict, place["site"]),
        chips=evidence.chips,
        bundle=bundle if _has_op(evidence) else None,
    )
    return JudgedEvidence(evidence=evidence, verdict=verdict, finding=finding)


def _has_op(evidence: Evidence) -> bool:
    """Return whether there may be an operator to replay alone: not for dumps of graphs, nor for MindSpore."""
    is_of_dump = evidence.reproduced and not evidence.replayed and not evidence.traced_live
    is_mindspore = evidence.origin is not None and is_of_mindspore(evidence.origin.op)
    is_elsewhere = evidence.trigger == "spike" and evidence.origin is None
    is_elsewhere = is_elsewhere or evidence.trigger in ("grad-underflow", "crash")
    return not is_elsewhere and not is_of_dump and not is_mindspore


def _place(evidence: Evidence, verdict: Verdict) -> dict[str, Any]:
    place: dict[str, Any] = {"phase": None, "site": None, "port": None, "param": None, "op": None}
    leaf, origin = evidence.leaf, evidence.origin
    if evidence.added_up is not None:
        name = evidence.added_up.param
        return place | {"phase": "grad", "site": name, "port": "grad", "param": name, "op": "c10d.allreduce_.default"}
    bad = evidence.replayed_bad_params or evidence.bad_params
    place["param"] = bad[0] if len(bad) == 1 else None
    if evidence.trigger == "nonfinite-param":
        name = evidence.bad_params[0] if evidence.bad_params else (leaf.name if leaf is not None else None)
        return place | {"phase": "optimizer", "site": name, "port": "param", "param": name}
    if evidence.trigger == "grad-underflow" and evidence.bad_params:
        name = evidence.bad_params[0]
        return place | {"phase": "backward", "site": name.rpartition(".")[0], "port": "grad", "param": name}
    if leaf is not None and (verdict.cause in _AT_THE_LEAF or origin is None):
        return place | _leaf_place(evidence)
    if origin is not None:
        return place | {"phase": origin.phase, "site": origin.site, "port": origin.port, "op": origin.op}
    phase: Phase = "loss" if not evidence.forward_finite or evidence.trigger == "nonfinite-loss" else "grad"
    if phase == "loss":
        return place | {"phase": "loss", "site": "loss", "port": "value"}
    return place | {"phase": "grad", "site": place["param"], "port": "grad"}


def _leaf_place(evidence: Evidence) -> dict[str, Any]:
    leaf = evidence.leaf
    assert leaf is not None
    if evidence.leaf_kind in ("param", "buffer"):
        is_param = evidence.leaf_kind == "param"
        return {
            "phase": "param",
            "site": leaf.name,
            "port": evidence.leaf_kind,
            "param": leaf.name if is_param else None,
        }
    return {"phase": "data", "site": "batch", "port": why.leaf_name(evidence)}


def _severity(evidence: Evidence, verdict: Verdict) -> Severity:
    if verdict.cause == "loss-scale-overflow" or evidence.trigger == "skipped-step":
        return "note"  # a rule that has seen the whole run makes more of it
    if evidence.trigger == "spike":
        return "warning" if verdict.confidence == "proven" else "note"
    if evidence.trigger in ("grad-underflow", "nonfinite-output", "unused-loss"):
        return "warning"
    if evidence.trigger in ("dead-grad", "nonfinite-activation"):
        if verdict.cause in _OVERFLOWS and verdict.confidence == "proven":
            return "error" if why.zeroed(evidence) else "warning"
        return "note"
    return "error"


def _samples(evidence: Evidence) -> tuple[int, ...]:
    """Return the samples that are to blame; () when all of them would be."""
    return evidence.samples if len(evidence.samples) < max(2, evidence.n_samples) else ()


def _remedy(evidence: Evidence, verdict: Verdict, site: str | None) -> Remedy | None:
    tried = sorted(evidence.remedies, key=lambda remedy: not remedy.verified)
    if tried and (tried[0].verified or not verdict.advice):
        return tried[0]
    if not verdict.advice:
        return None
    return Remedy(action="change-code", targets=(site,) if site else (), verified=False, text=verdict.advice)


def _to_mend(evidence: Evidence, verdict: Verdict) -> tuple[str, ...]:
    """Say what to change when the remedy shown only keeps the sample away; else ()."""
    shown = _remedy(evidence, verdict, None)
    is_avoidance = shown is not None and shown.action in ("drop-samples", "skip-batch")
    return (f"{TO_MEND}{verdict.advice}",) if is_avoidance and verdict.advice else ()


def _relative(path: Path, run: Path) -> str:
    try:
        return path.relative_to(run).as_posix()
    except ValueError:
        return path.name
