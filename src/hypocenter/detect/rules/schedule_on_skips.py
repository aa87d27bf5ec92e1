"""A learning-rate schedule or an average of weights advances without an update.

What it means
    The loss scaler skipped updates, and the scheduler stepped (or the averaged model was updated) all the same. The
    learning rate runs ahead of the updates: a warm-up that is over before the weights have moved. An average counts
    the same weights twice. Judging by whether `optimizer.step` was called does not help: a fused optimizer is called
    for a skipped update too, and skips inside. Or it steps once for each micro-batch of an accumulated update: it is
    over as many times earlier, if its length is in updates.

How it is decided
    Calls of schedulers are counted between updates. Fires when one that steps after most updates also stepped after
    skipped ones, once four updates were applied. It is a warning when the learning rate moved, over all those steps,
    by more than 5 % of its full height; else a note, as for an average: after the usual few skips at the start, a
    long schedule has lost nothing. A note too: at four updates in a row one step for each of several micro-batches.
    A warning: the last eight updates and more, and a twentieth of all, have a learning rate of 0 in all groups; at four
    updates in a row two lines of code made it step; or it stepped at eight updates that another
    optimizer made of its parameters, at one learning rate, while its own made none; or it was made for exactly as many
    steps as the run had updates, and at the end has made a quarter of them or fewer. A note: a `CosineAnnealingLR` that
    goes on past `T_max`; a schedule that begins at 0 for an optimizer whose state counts at least eight updates more.
    The reverse is a warning: a schedule that goes on at step 4 or later, for an optimizer whose state begins at 0, if
    no optimizer before had some of its parameters and others than it (a stage of training).

What to do
    Step the scheduler only when the scale has not fallen: `before = scaler.get_scale()`, `scaler.update()`,
    `if scaler.get_scale() >= before: scheduler.step()`.

When it is wrong
    When the schedule is meant to follow batches and not updates.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.misuse import (
    ANEW,
    DRIFT,
    FROM_TWO_LINES,
    HARDLY,
    OF_ANOTHER,
    ON_SKIPPED,
    OVER,
    PAST_END,
    PER_MICROBATCH,
    SCHEDULE,
    SCHEDULE_END,
    SKIPPED,
    STATE_ANEW,
    UPDATES,
)
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy, Severity

HARMFUL_DRIFT = 0.05  # of the schedule's full height: less is hidden by the choice of the schedule itself
MOST_SKIPS = 0.5  # share of skipped updates that it stepped after: one that is held back does so after none
ENOUGH = 4  # updates in a row
SHOWN = 12  # steps that a sentence lists


@rule("HC214", "config", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire when a schedule has first advanced on skipped updates, and again if it turns from a note to a warning."""
    for row in window.by_phase["optimizer"]:
        if row.site == PER_MICROBATCH:
            yield _each_microbatch(window, row)
        elif row.site in _OUT_OF_STEP:
            yield _out_of_step(window, row)
        elif row.site == OVER:
            yield _over(window, row)
        if row.site != ON_SKIPPED:
            continue
        facts = _facts(window.readings, row.module)
        severity, said = _severity(facts), _said(window, row.module)
        if severity is not None and severity not in said:
            yield _finding(window, row.module, facts, severity)
        elif said and any(r.site == SCHEDULE_END and r.module == row.module for r in window.readings):
            yield _in_all(window, row.module, facts)


_OUT_OF_STEP: dict[str, tuple[Severity, str, str, str]] = {
    FROM_TWO_LINES: (
        "warning", "{name} steps twice for each update",
        "at {n} updates in a row two lines made it step: {lines}", "it is over in half the time",
    ),
    OF_ANOTHER: (
        "warning", "{name} sets the learning rate of an optimizer that is not used",
        "{value:.0f} updates of its parameters were made by another optimizer, whose learning rate stayed as it was",
        "training goes on without a schedule",
    ),
    PAST_END: (
        "note", "{name} goes on past its end", "it has T_max = {value:.0f} steps and was made to step once more",
        "the learning rate rises again",
    ),
    HARDLY: (
        "warning", "{name} has stepped {lines} times of {value:.0f}",
        "it was made for {value:.0f} steps, as many as the run had updates, and stepped {lines} times: for each "
        "epoch, or each whole batch of several micro-batches, and not for each update?",
        "the learning rate has hardly left its beginning",
    ),
    ANEW: (
        "note", "{name} begins anew, and its optimizer goes on",
        "the optimizer had made {value:.0f} updates before, and the schedule began at 0",
        "a warm-up, or a high learning rate, comes again",
    ),
    STATE_ANEW: (
        "warning", "{name} goes on, and the state of its optimizer begins anew",
        "the schedule went on at step {value:.0f}; the optimizer counts its updates from 0",
        "momentum and averages begin at zero in the middle of a schedule",
    ),
}  # fmt: skip


_MEND = {
    FROM_TWO_LINES: ("step-once", "leave one of the two: one step of the schedule for each update"),
    OF_ANOTHER: ("make-schedule-anew", "make {name} anew, of the optimizer whose step() is called, where that is made"),
    PAST_END: ("lengthen-schedule", "make T_max the number of steps that it is made to step"),
    HARDLY: (
        "step-for-each-update",
        'step it after each update; in Lightning {{"scheduler": ..., "interval": "step"}}',
    ),
    ANEW: ("restore-state", "load the schedule's state_dict with that of its optimizer"),
    STATE_ANEW: ("restore-state", "restore the optimizer's state_dict with that of the schedule"),
}


def _out_of_step(window: Window, row: Reading) -> Finding:
    severity, title, why, then = _OUT_OF_STEP[row.site]
    action, text = _MEND[row.site]
    words = {"name": row.module, "n": ENOUGH, "value": row.summary.sum, "lines": ", ".join(row.names or ())}
    return Finding(
        code="HC214", kind="config", severity=severity, step=window.step - row.call, rank=window.rank,
        phase="optimizer", site="lr", port="value", title=title.format(**words), cause="config-mismatch",
        confidence="proven" if severity == "warning" else "likely", why=(why.format(**words),), then=(then,),
        remedy=Remedy(action=action, text=text.format(**words)),
    )  # fmt: skip


def _each_microbatch(window: Window, row: Reading) -> Finding:
    """Return a note that the schedule steps at each micro-batch: its length may have been chosen so."""
    n = round(row.summary.sum)
    return Finding(
        code="HC214", kind="config", severity="note", step=window.step - row.call, rank=window.rank, phase="optimizer",
        site="", title=f"{row.module} steps {n} times for each update", cause="config-mismatch", confidence="likely",
        why=(f"at {ENOUGH} updates in a row it stepped once for each of their {n} micro-batches",),
        then=(f"it is over {n} times earlier, if its length is in updates",), limit=1.0, actual=float(n),
    )  # fmt: skip


def _over(window: Window, row: Reading) -> Finding:
    """Report updates at a learning rate of 0, up to the last one."""
    n, (n_all, *of_each) = round(row.summary.sum), row.names or ("",)
    instead = "step it once for each update, or " if of_each else ""
    each = [f"it steps once for each of the {of_each[0]} micro-batches of an update"] if of_each else []
    return Finding(
        code="HC214", kind="config", severity="warning", step=window.step - row.call, rank=window.rank,
        phase="optimizer", site="lr", port="value", title=f"{row.module} is over before training: the last {n} of "
        f"{n_all} updates have a learning rate of 0", cause="config-mismatch", confidence="proven",
        why=("all groups of its optimizer have a learning rate of 0 from there to the end", *each),
        then=("these updates change nothing",),
        remedy=Remedy(action="lengthen-schedule", text=f"{instead}make it as long as the run"),
    )  # fmt: skip


def _in_all(window: Window, name: str, facts: dict[str, float]) -> Finding:
    """Return a note with the counts of the whole run, in addition to the finding made before."""
    return Finding(
        code="HC214",
        kind="config",
        severity="note",
        title=f"in all, {facts[UPDATES]:.0f} updates against {facts[SCHEDULE]:.0f} steps of {name}",
        step=window.step,
        rank=window.rank,
        phase="optimizer",
        site="lr",
        port="value",
        cause="config-mismatch",
    )


def _facts(readings: tuple[Reading, ...], name: str) -> dict[str, float]:
    sites = (SCHEDULE, ON_SKIPPED, SKIPPED, UPDATES, DRIFT)
    return {r.site: r.summary.sum for r in readings if r.site in sites and r.module == name}


def _severity(facts: dict[str, float]) -> Severity | None:
    on_skipped, skipped = facts.get(ON_SKIPPED, 0.0), facts.get(SKIPPED, 0.0)
    if not on_skipped or on_skipped <= MOST_SKIPS * skipped:
        return None
    return "warning" if facts.get(DRIFT, 0.0) > HARMFUL_DRIFT else "note"


def _said(window: Window, name: str) -> set[Severity]:
    """Return the severities that earlier rows of this schedule had; a warning includes the note."""
    steps: dict[int, dict[str, float]] = {}
    for site in (ON_SKIPPED, SKIPPED, DRIFT):
        for r in window.history.rows(site, "value"):
            if r.module == name:
                steps.setdefault(r.step, {})[site] = r.summary.sum
    said: set[Severity] = {s for facts in steps.values() if (s := _severity(facts)) is not None}
    if "warning" in said:
        said.add("note")
    return said


def _finding(window: Window, name: str, facts: dict[str, float], severity: Severity) -> Finding:
    skipped = [r.step for r in window.history.records if r.skipped]
    listed = ", ".join(map(str, skipped[:SHOWN])) + (
        f" and {len(skipped) - SHOWN} more" if len(skipped) > SHOWN else ""
    )
    drift = facts.get(DRIFT, 0.0)
    return Finding(
        code="HC214",
        kind="config",
        severity=severity,
        title=f"{name} advances on skipped updates",
        step=skipped[0] if skipped else window.step,
        rank=window.rank,
        phase="optimizer",
        site="lr",
        port="value",
        cause="config-mismatch",
        confidence="proven",
        actual=facts[SCHEDULE],
        limit=facts[UPDATES],
        why=(
            f"{facts[UPDATES]:.0f} updates against {facts[SCHEDULE]:.0f} steps of {name}, up to step {window.step}",
            f"it stepped after {facts[ON_SKIPPED]:.0f} of {facts[SKIPPED]:.0f} skipped updates: steps {listed}",
            *([f"on these the learning rate moved by {100 * drift:.2g} % of its full height"] if drift else []),
        ),
        remedy=Remedy(
            action="hold-schedule", text="step the scheduler only when scaler.update() has not lowered the scale"
        ),
    )
