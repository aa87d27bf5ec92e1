"""What followed from a failure, in sentences: the `then` of a finding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypocenter.diagnose.group import FORECAST, OF_THE_SCALE, TOLD_WHOLE, Group
from hypocenter.diagnose.judged_evidence import JudgedEvidence
from hypocenter.diagnose.numbers import listed
from hypocenter.diagnose.records import Records
from hypocenter.diagnose.why import place
from hypocenter.in_words import counted
from hypocenter.nouns import Finding

_SHOWN = 8  # numbers of steps or ranks that a sentence lists


def what_followed(group: Group, spans: Sequence[Episode], records: Records) -> list[str]:
    """Say what followed: from the loss that went bad with it to other ranks and later steps.

    Args:
        group: the finding, with its followers.
        spans: episodes of bad steps.
        records: step records of all ranks.
    """
    piece = group.piece
    then = [*_turned(piece), *_symptoms(group, spans, records), *_spread(piece, records), *_probes(group)]
    then += _told_whole(group)
    then += [*_fell(group), *_skipped(group, records), *_other_ranks(group), *_again(group), *_later(group)]
    return then


def forecast(group: Group) -> list[str]:
    """Say how the failure had been seen coming."""
    told = [f for f in group.followers if f.code == FORECAST]
    return [f"forecast at step {f.step}: {f.why[1]}" for f in told[:1] if len(f.why) > 1]


def _turned(piece: JudgedEvidence | None) -> list[str]:
    maker = piece.evidence.nan_maker if piece is not None else None
    return [f"{place(maker)} -> NaN"] if maker is not None else []


def _symptoms(group: Group, spans: Sequence[Episode], records: Records) -> list[str]:
    """Say which loss and which gradients went bad first."""
    finding, piece = group.finding, group.piece
    episode = episode_of(finding.step, spans) if finding.severity == "error" else None
    if episode is None:
        return []
    mine = records.of_rank(finding.rank)
    after = [r for r in mine if r.step in episode and r.step >= finding.step]
    lines: list[tuple[int, str]] = []
    bad_loss = next((r for r in after if r.loss is not None and not math.isfinite(r.loss)), None)
    if bad_loss is not None and bad_loss.loss is not None and not (finding.code == "HC102" and piece is None):
        kind = "NaN" if math.isnan(bad_loss.loss) else "inf"
        lines.append((bad_loss.step, f"loss -> {kind} (step {bad_loss.step})"))
    n_bad, n_params = _bad_gradients(piece)
    bad_grads = next((r for r in after if r.n_bad_grads), None)
    if n_bad:
        lines.append((finding.step, f"{n_bad:,} of {n_params:,} gradients -> NaN"))
    elif bad_grads is not None and not (finding.code == "HC101" and piece is None):
        lines.append((bad_grads.step, f"{counted(bad_grads.n_bad_grads, 'gradient')} -> NaN (step {bad_grads.step})"))
    return [line for _, line in sorted(lines, key=lambda pair: pair[0])]


def _bad_gradients(piece: JudgedEvidence | None) -> tuple[int, int]:
    """Return how many gradients went bad before any clipping, and out of how many."""
    if piece is None or piece.evidence.trigger == "nonfinite-param":
        return 0, 0
    n_bad = len(piece.evidence.replayed_bad_params) or len(piece.evidence.bad_params)
    return n_bad, max(piece.evidence.n_params, n_bad)


def _spread(piece: JudgedEvidence | None, records: Records) -> list[str]:
    if piece is None or not piece.evidence.clip:
        return []
    record = records.get(piece.finding.rank, piece.finding.step)
    before = len(piece.evidence.bad_params)
    after = record.n_bad_grads if record is not None and record.n_bad_grads > before else piece.evidence.n_params
    return [f"{piece.evidence.clip} spread it from {before:,} to {after:,} parameters"] if before < after else []


def _probes(group: Group) -> list[str]:
    probes = [f for f in group.followers if f.code == "HC107" and f.step == group.finding.step]
    return [f"probe {f.site} -> {', '.join(f.chips)}" for f in probes]


def _told_whole(group: Group) -> list[str]:
    """Return counts of the whole run: loggers that show finite numbers instead."""
    return [f.title for f in group.followers if f.code in TOLD_WHOLE]


def _fell(group: Group) -> list[str]:
    fall = group.fall
    if fall is None or group.finding.severity == "note":
        return []
    is_said = fall.n_skips > 1 or group.finding.code in OF_THE_SCALE
    ruin = f"1 / loss scale is infinite: the update of step {group.ruined_from} -> NaN in the parameters"
    return [*([fall.sentence()] if is_said else []), *([ruin] if group.ruined_from is not None else [])]


def _skipped(group: Group, records: Records) -> list[str]:
    record = records.get(group.finding.rank, group.finding.step)
    if record is None or not record.skipped or (group.finding.code == "HC106" and group.piece is None):
        return []
    return [] if _fell(group) else ["the update was skipped"]


def _other_ranks(group: Group) -> list[str]:
    everywhere = {f.rank for f in (*group.followers, *group.same)} - {group.finding.rank}
    if not everywhere:
        return []
    is_ruled = group.piece is None and group.finding.kind != "nonfinite"  # of a law that is broken there as well
    what = "it jumps there too" if group.finding.kind == "spike" else "the same" if is_ruled else "not finite too"
    return [f"rank{'s' if len(everywhere) > 1 else ''} {listed(everywhere, at_most=_SHOWN)} -> {what}"]


def _again(group: Group) -> list[str]:
    steps = {f.step for f in group.same} - {group.finding.step}
    if not steps:
        return []
    return [f"the same at {counted(len(steps), 'later step')}: {listed(steps, at_most=_SHOWN)}"]


def _later(group: Group) -> list[str]:
    told = group.fall if _fell(group) else None
    later = [f for f in group.followers if f.step > group.finding.step and f.code not in TOLD_WHOLE]
    later = [f for f in later if told is None or f.step not in told or f.code not in ("HC101", "HC106", "HC201")]
    if not later:
        return []
    first, last = min(f.step for f in later), max(f.step for f in later)
    span = f"step {first}" if first == last else f"steps {first} to {last}"
    return [f"{counted(len(later), 'later finding')} ({span})"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A run of consecutive recorded steps, on any rank, in each of which something was not finite."""

    first: int
    last: int

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and self.first <= step <= self.last


def is_sick(finding: Finding) -> bool:
    """Return whether a finding says that training was not finite in its step (not only a value that went nowhere)."""
    is_update = finding.code == "HC104" and finding.phase == "optimizer"  # it ends in a parameter
    return finding.kind == "nonfinite" and finding.severity == "error" and (finding.code in SICK_CODES or is_update)


SICK_CODES = frozenset({"HC101", "HC102", "HC103"})  # gradient, loss, parameter


def episodes(steps: Iterable[int], sick: Iterable[int]) -> tuple[Episode, ...]:
    """Group sick steps that follow each other in the list of recorded steps.

    Args:
        steps: all recorded steps, of any rank; unrecorded ones do not end an episode.
        sick: the steps in which something was not finite.
    """
    bad = set(sick)
    found: list[Episode] = []
    start: int | None = None
    last = 0
    for step in sorted(bad | set(steps)):
        if step in bad:
            start, last = (step if start is None else start), step
        elif start is not None:
            found.append(Episode(first=start, last=last))
            start = None
    if start is not None:
        found.append(Episode(first=start, last=last))
    return tuple(found)


def episode_of(step: int, found: Sequence[Episode]) -> Episode | None:
    """Return the episode that a step lies in; None when it lies in none."""
    return next((episode for episode in found if step in episode), None)
