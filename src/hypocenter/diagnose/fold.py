"""One finding per cause: what a piece of evidence explains is folded into its finding's `then`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypocenter.diagnose.consequences import Episode, episode_of, episodes, forecast, is_sick, what_followed
from hypocenter.diagnose.fall import Fall, fall_from, first_without_inverse, scale_text, streaks
from hypocenter.diagnose.group import EACH_STEP, FORECAST, OF_THE_SCALE, Folded, Group
from hypocenter.diagnose.judged_evidence import JudgedEvidence
from hypocenter.diagnose.records import Records
from hypocenter.nouns import Finding, StepRecord

# Without evidence: what names a place comes before what names a symptom.
_FIRST = ("HC104", "HC103", "HC102", "HC201", "HC101")
BEFORE_REDUCTION = "HC313"
OVERFLOWED = "HC312"  # finite shares, a sum that is not
SPIKE = "HC401"
LOCATES = (BEFORE_REDUCTION,)  # codes that say where a failure started although its cause is unknown
_AFTER = ("HC101", "HC102", "HC106")  # gradient, loss, skipped step: what all ranks have


def fold(pieces: Sequence[JudgedEvidence], found: Iterable[Finding], records: Records) -> tuple[Folded, ...]:
    """Fold findings of evidence and of rules into one ordered list, causes first.

    Args:
        pieces: by step, located ones first.
        found: what the rules found.
        records: step records of all ranks.
    """
    ruled = sorted(found, key=lambda f: (f.step, _FIRST.index(f.code) if f.code in _FIRST else 9, f.rank, _is_less(f)))
    sick = {f.step for f in (*(e.finding for e in pieces), *ruled) if is_sick(f)}
    sick |= {s for p in records.skipping() for streak in streaks(p) for s in _after_first(streak, sick)}
    spans = episodes(records.steps().tolist(), sick)
    groups: list[Group] = []
    for piece in pieces:
        _place_piece(piece, groups, spans)
    for group in groups:
        shown = group.piece
        if shown is not None and shown.evidence.loss_scale is not None and group.finding.severity == "error":
            group.fall = fall_from(records.of_rank(group.finding.rank), group.finding.step)
    ruled = _led_by_one_rank(groups, ruled)
    _take_in_skips(groups)
    _take_in_ruin(groups, records)
    for finding in sorted(ruled, key=lambda f: f.code == FORECAST):  # last: whether it came true is known then
        if finding.code in OF_THE_SCALE:
            _place_fall(finding, groups, records.of_rank(finding.rank))
        else:
            _place_finding(finding, groups, spans)
    _take_in_unexplained(groups)
    folded = [_finished(group, spans, records) for group in groups]
    return tuple(sorted(folded, key=lambda f: _order(f.finding)))


def _action(finding: Finding) -> str:
    return "" if finding.remedy is None else finding.remedy.action


def _is_less(finding: Finding) -> bool:
    """Return whether it may tell less than another finding of its step."""
    return _action(finding) == "zero-grad" or finding.severity == "note"


def _says_more(known: Finding, finding: Finding) -> bool:
    """Return whether it is what another one was seen to be later: surer, or how gradients are not zeroed."""
    if known.rank != finding.rank or known.code != finding.code:
        return False
    if _action(finding) == "zero-grad":
        return _action(known) == "step-with-zero-grad"
    is_same = (known.step, known.site, known.title) == (finding.step, finding.site, finding.title)
    return is_same and known.severity != "note"


def _order(finding: Finding) -> tuple[bool, int, bool, bool, int]:
    return (
        finding.severity == "note",
        finding.step,
        finding.severity != "error",
        finding.cause == "unknown",
        finding.rank,
    )


def _place_piece(piece: JudgedEvidence, groups: list[Group], spans: Sequence[Episode]) -> None:
    finding = piece.finding
    twin = next((g for g in groups if g.piece is not None and piece.is_located and g.piece.key == piece.key), None)
    if twin is not None:
        twin.same.append(finding)
        return
    episode = episode_of(finding.step, spans) if is_sick(finding) else None
    leaders = [g for g in groups if episode is not None and g.finding.step in episode and is_sick(g.finding)]
    located = [g for g in leaders if g.piece is not None and g.piece.is_located]
    is_late = bool(leaders) and finding.step > leaders[0].finding.step
    unexplained = next((g for g in leaders if not piece.is_located and _is_same_symptom(g, finding)), None)
    if located and not piece.is_located:
        located[0].followers.append(finding)
    elif unexplained is not None:
        unexplained.same.append(finding)
    elif leaders and is_late and finding.cause in ("bad-parameter", "unknown"):
        (located or leaders)[0].followers.append(finding)
    else:
        groups.append(Group(finding=finding, piece=piece))


def _is_same_symptom(group: Group, finding: Finding) -> bool:
    """Return whether another rank shows at the same step what a group cannot explain either."""
    known = group.finding
    is_other_rank = known.rank != finding.rank and known.step == finding.step
    return is_other_rank and (known.code, known.cause, known.site) == (finding.code, finding.cause, finding.site)


def _place_finding(finding: Finding, groups: list[Group], spans: Sequence[Episode]) -> None:
    leader = _leader(finding, groups, spans)
    if finding.code == FORECAST and leader is None:
        leader = next((g for g in groups if g.finding.code == FORECAST and g.finding.site == finding.site), None)
        if leader is not None:  # of another rank
            leader.same.append(finding)
            return
    if leader is None:
        twin = next((g for g in groups if g.piece is None and _is_elsewhere(g.finding, finding)), None)
        if twin is None:
            groups.append(Group(finding=finding))
        else:
            twin.same.append(finding)
    elif leader.finding.code == finding.code in ("HC106", *EACH_STEP) and leader.piece is None:
        leader.same.append(finding)
    else:
        leader.followers.append(finding)


def _is_elsewhere(one: Finding, other: Finding) -> bool:
    """Return whether both say the same of two different ranks."""
    return one.rank != other.rank and all(
        getattr(one, name) == getattr(other, name) for name in ("code", "step", "site", "title", "severity", "source")
    )


def _place_fall(finding: Finding, groups: list[Group], past: Sequence[StepRecord]) -> None:
    """Put a falling scale below what is to blame for it, or above what was found out about it."""
    fall = fall_from(past, finding.step)
    blamed = next((g for g in groups if _is_blamed(g, fall, finding.step)), None)
    if blamed is not None and _was_traced_later(blamed, finding):
        _promote(blamed, finding, fall)
        return
    if blamed is not None and (finding.code == "HC201" or blamed.finding.step <= finding.step):
        blamed.followers.append(finding)
        blamed.fall = fall if blamed.fall is None or blamed.fall.n_skips < 2 else blamed.fall
        return
    twin = next((g for g in groups if g.finding.code == finding.code and fall and g.finding.step in fall), None)
    if twin is not None:
        twin.same.append(finding)
        return
    showing = [g for g in groups if _shows(g, finding, fall)]
    shown = min(showing, key=lambda g: g.finding.cause == "unknown", default=None)
    if shown is None:
        groups.append(Group(finding=finding, fall=fall))
    else:
        _promote(shown, finding, fall)


def _take_in_skips(groups: list[Group]) -> None:
    """Put a skip that a replay could not show again, as on a rank that was fine, below the fall it lies in."""
    falling = [g for g in groups if g.fall is not None]
    for group in list(groups):
        shown = group.piece
        if shown is None or shown.evidence.trigger != "skipped-step" or shown.is_located:
            continue
        leader = next((g for g in falling if g.fall is not None and group.finding.step in g.fall), None)
        if leader is not None:
            leader.followers.append(group.finding)
            groups.remove(group)


def _take_in_unexplained(groups: list[Group]) -> None:
    """Put a skip that could not be repeated below the fall it lies in, whose cause a later step showed."""
    explained = [g for g in groups if g.fall is not None and g.finding.cause != "unknown"]
    for group in list(groups):
        shown, finding = group.piece, group.finding
        if shown is None or shown.is_located or shown.evidence.trigger != "nonfinite-grad":
            continue
        mine = (g for g in explained if g.finding.rank == finding.rank)
        leader = next((g for g in mine if g.fall is not None and finding.step in g.fall), None)
        if leader is not None:
            leader.followers.append(finding)
            groups.remove(group)


def _take_in_ruin(groups: list[Group], records: Records) -> None:
    """Put parameters that unscaling by a scale near zero made NaN, and what follows, below the fall."""
    for leader in [g for g in groups if g.fall is not None]:
        step = first_without_inverse(records.of_rank(leader.finding.rank))
        if step is None or step < leader.finding.step:
            continue
        leader.ruined_from = step
        for group in [g for g in groups if g is not leader and g.finding.rank == leader.finding.rank]:
            if group.finding.step >= step and group.finding.kind == "nonfinite" and group.finding.cause == "unknown":
                leader.followers.append(group.finding)
                groups.remove(group)


def _is_blamed(group: Group, fall: Fall | None, step: int) -> bool:
    """Return whether a group says what made gradients non-finite that no loss scale would have mended."""
    if fall is None or group.finding.severity != "error" or group.finding.kind != "nonfinite":
        return False
    is_located = group.piece is not None and group.piece.is_located
    is_same = any(f.step in fall for f in (group.finding, *group.same))
    return (is_located or group.finding.code == "HC102") and (
        is_same or (group.fall is not None and step in group.fall)
    )


def _was_traced_later(group: Group, finding: Finding) -> bool:
    """Return whether it shows a later step of the fall, because the first ones could not be repeated."""
    return group.piece is not None and group.piece.evidence.traced_live and group.finding.step > finding.step


def _shows(group: Group, finding: Finding, fall: Fall | None) -> bool:
    """Return whether a group knows more of the same fall than the rule does."""
    if group.finding.code == "HC202" and finding.code == "HC201":
        return group.fall is not None and finding.step in group.fall
    if group.piece is None or fall is None or group.finding.step not in fall:
        return False
    evidence = group.piece.evidence
    if evidence.trigger == "skipped-step":
        below = finding.param or finding.site or ""
        return finding.code == "HC201" or any(f"{p}.".startswith(f"{below}.") for p in evidence.bad_params)
    is_left = not group.piece.is_located or _was_traced_later(group, finding)
    return finding.code == "HC201" and evidence.trigger == "nonfinite-grad" and is_left


def _promote(group: Group, finding: Finding, fall: Fall | None) -> None:
    """Give the rule's finding the place, cause and proof of the group's, and let it lead the group."""
    old, piece = group.finding, group.piece
    known = old if old.cause != "unknown" else finding
    if finding.limit == 1.0 and known.cause == "loss-scale-overflow":  # below scale 1 the gradient itself is too large
        known = finding
    seen = ""
    if piece is not None:
        how = "traced while it ran" if piece.evidence.traced_live else "replayed"
        seen = f"step {old.step} was {how} at loss scale {scale_text(piece.evidence.loss_scale or 1.0)}"
    is_placed = old.site is not None
    group.finding = replace(
        old,
        code=finding.code,
        kind=finding.kind,
        severity=finding.severity,
        title=finding.title,
        step=finding.step,
        site=old.site if is_placed else finding.site,
        phase=old.phase if is_placed else finding.phase,
        param=finding.param or old.param,
        cause=known.cause,
        confidence=known.confidence,
        limit=old.limit if old.limit is not None else finding.limit,
        actual=old.actual if old.limit is not None else finding.actual,
        remedy=old.remedy if old.remedy is not None and old.remedy.verified else finding.remedy,
        why=(*finding.why, *((seen,) if piece is not None and piece.is_located else ()), *old.why),
    )
    group.fall = fall


def _after_first(streak: Sequence[int], sick: set[int]) -> Sequence[int]:
    """Return the skips that follow a bad step without an update in between."""
    start = next((i for i, step in enumerate(streak) if step in sick), len(streak))
    return streak[start:]


def _leader(finding: Finding, groups: Sequence[Group], spans: Sequence[Episode]) -> Group | None:
    """Return the group that explains a rule's finding: of the same step or, in an episode, of an earlier one."""
    if finding.code in ("HC101", "HC106"):
        falling = (g for g in groups if g.fall is not None and g.finding.severity != "note")
        leads = (g for g in falling if finding.code == "HC106" or g.finding.code in ("HC201", "HC101"))
        fallen = next((g for g in leads if g.fall is not None and finding.step in g.fall), None)
        if fallen is not None:
            return fallen
    if finding.kind == "nonfinite":
        ruined = (g for g in groups if g.ruined_from is not None and g.finding.rank == finding.rank)
        leader = next((g for g in ruined if g.ruined_from is not None and finding.step >= g.ruined_from), None)
        if leader is not None:
            return leader
    if _is_less(finding) and (leader := next((g for g in groups if _says_more(g.finding, finding)), None)) is not None:
        return leader
    if finding.code == "HC214" and finding.severity == "note":
        return next((g for g in reversed(groups) if _is_same_schedule(g.finding, finding)), None)
    if finding.code == SPIKE:  # of the norm beside the loss, and of other ranks
        jumps = (g for g in groups if g.finding.code == SPIKE)
        return next((g for g in jumps if finding.step in {f.step for f in (g.finding, *g.same)}), None)
    if finding.code == BEFORE_REDUCTION and finding.kind == "spike":  # its origin may have been proven on that rank
        proven = (g for g in groups if g.finding.code == SPIKE and g.is_located)
        return next((g for g in proven if (g.finding.step, g.finding.rank) == (finding.step, finding.rank)), None)
    if finding.code == FORECAST:
        return next((g for g in groups if _came_true(finding, g.finding)), None)
    episode = episode_of(finding.step, spans) if finding.kind == "nonfinite" else None
    if episode is not None:
        leading = [(g, f) for g in groups for f in (g.finding, *g.same) if f.severity == "error"]
        leading = [(g, f) for g, f in leading if f.step in episode and f.step <= finding.step]
        if leading:
            return min(leading, key=lambda pair: _distance(pair[1], finding))[0]
    if finding.code == "HC106":
        skips = [g for g in groups if g.finding.code == "HC106"]
        alike = (g for g in skips if g.piece is None and g.finding.why == finding.why)
        return next((g for g in skips if g.finding.step == finding.step), next(alike, None))
    if finding.code in EACH_STEP:
        return next((g for g in groups if g.finding.code == finding.code), None)
    same_step = [g for g in groups if g.piece is not None and g.finding.step == finding.step]
    shown = [g for g in same_step if g.finding.rank == finding.rank or is_sick(g.finding)]
    if shown and finding.code in ("HC101", "HC102", "HC103", "HC104", "HC105", "HC107"):
        return shown[0]
    return None


def _is_same_schedule(said: Finding, counts: Finding) -> bool:
    """Return whether these are the whole run's counts of the schedule that a finding is about, or that it is over."""
    name, what, _ = said.title.partition(" steps ")
    name = name.partition(" ")[0]
    is_early = bool(what) and counts.title == f"{name} goes on past its end"
    is_of_it = counts.title.endswith(f" of {name}") or is_early
    return said.code == counts.code and said.rank == counts.rank and is_of_it


def _came_true(forecast: Finding, finding: Finding) -> bool:
    """Return whether a value overflowed where it had been forecast."""
    is_overflow = finding.kind == "nonfinite" and finding.severity == "error" and finding.site is not None
    return is_overflow and finding.site == forecast.site and finding.step >= forecast.step


def _distance(leader: Finding, finding: Finding) -> tuple[bool, int]:
    """Return a sort key: of one step the same rank first, then the earliest step."""
    return leader.rank != finding.rank and leader.step == finding.step, leader.step


def _finished(group: Group, spans: Sequence[Episode], records: Records) -> Folded:
    finding, then = group.finding, what_followed(group, spans, records)
    return Folded(
        finding=replace(
            finding,
            why=(*finding.why, *forecast(group)),
            then=(*finding.then, *dict.fromkeys(then)),
            count=1 + len(group.same),
        ),
        is_located=group.is_located or finding.cause != "unknown" or finding.code in LOCATES,
    )


def _led_by_one_rank(groups: list[Group], ruled: Sequence[Finding]) -> list[Finding]:
    """Let findings of HC313 and HC312 lead groups that no replay explains, and follow those that one does.

    Args:
        groups: of evidence so far; changed in place.
        ruled: findings of rules.

    Returns:
        The findings of rules that are left to be placed.
    """
    left: list[Finding] = []
    for finding in ruled:
        if finding.code not in (BEFORE_REDUCTION, OVERFLOWED) or finding.severity != "error":
            left.append(finding)
            continue
        at_step = [g for g in groups if finding.step in {f.step for f in (g.finding, *g.same)}]
        explained = next((g for g in at_step if g.is_located and _explains(g.finding, finding)), None)
        if explained is not None:
            explained.followers.append(finding)
            continue
        leader = Group(finding=finding)
        for group in at_step:
            if not group.is_located and group.finding.code in _AFTER:
                leader.followers += [group.finding, *group.same, *group.followers]
                groups.remove(group)
        groups.append(leader)
    return left


def _explains(located: Finding, finding: Finding) -> bool:
    """Return whether a replay explains it: one on the same rank; for a sum, on any rank."""
    return located.rank == finding.rank or (finding.code == OVERFLOWED and located.cause == finding.cause)
