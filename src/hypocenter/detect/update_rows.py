"""Rows about what low-precision formats do to updates, read back: the contract between observers, rules and the page.

Rows of phase `optimizer` (written by hypocenter.session.observers: updates, frozen_state, averages, accumulation,
hyperparameters, head). Nothing of this is written for a run whose parameters and optimizer state are float32.

    site <parameter>, port `update_lost`      of a sample of its elements: n were to move (gradient and intended update
                                              not 0), sum of them stayed bit for bit. `module` is the optimizer's class
                                              when the update was recomputed from its formula; empty: only gradients
                                              and values were compared
    site <parameter>, port `update_ulps`      median of |intended update| / ulp(weight) over the same sample
    site `updates`, port `update_lost`        all parameters that were looked at in the step, together
    site `updates`, port `stuck`              n parameters were looked at, sum of them lost STUCK or more
    site `updates`, port `grad_share`         gradient norm of the step, by the largest so far
    site `updates`, port `lr_share`           learning rate of the step, by the largest so far
    site <parameter>, port `step_counter`     Adam's `step` after the update, when kept in a low format
    site <parameter>, port `step_moved`       by how much the update changed it
    site <parameter>, port `exp_avg_sq_lost`  as update_lost, for the second moment
    site <parameter>, port `exp_avg_sq_ratio` mean of the second moment as stored, by what exact arithmetic would hold
    site `updates`, port `exp_avg_sq_wrong`   n second moments were looked at, sum of them are frozen and wrong
    site <parameter>, port `ema_lost`         of a sample of a copy of it: n elements that an exact average would have
                                              moved by at least an ulp by now, sum of them never moved; `module` is
                                              the copy's class
    site `updates`, port `ema_lost`           all looked at together; `call` is the step of the copy's first update
    site <parameter>, port `accumulated`      gradient as accumulated in a low format, by the float64 sum of the same
                                              micro-batch gradients (projection; 1 is right); `call`: how many
    site <parameter>, port `addition_lost`    n additions of a gradient that was not 0, sum of them changed nothing
    site `updates`, the same two ports        the same, so that one step can be compared with the one before
    site `param_groups[i].<name>`, port `hyper` / `hyper_rounded`
                                              a hyper-parameter as given, and as the format `dtype` holds it
    site <module>, port `head_gap`            RMS difference in nats between log-probabilities that two passes over the
                                              same hidden states with the same weights gave; `dtype` is the lower of the
                                              two formats, `call` the number of tokens, `module` is "ratio" when the
                                              loss code takes the exponential of a difference with given values
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypocenter.detect.window import Window
from hypocenter.nouns import Reading, Summary

SITE = "updates"
UPDATE_LOST, UPDATE_ULPS, PARAMS_STUCK = "update_lost", "update_ulps", "stuck"
GRAD_SHARE, LR_SHARE = "grad_share", "lr_share"
STEP_COUNTER, STEP_MOVED = "step_counter", "step_moved"
MOMENT_LOST, MOMENT_RATIO, MOMENTS_WRONG = "exp_avg_sq_lost", "exp_avg_sq_ratio", "exp_avg_sq_wrong"
EMA_LOST = "ema_lost"
ACCUMULATED, ADDITION_LOST = "accumulated", "addition_lost"
HYPER, HYPER_ROUNDED = "hyper", "hyper_rounded"
HEAD_GAP = "head_gap"

STUCK = 0.95  # of its elements a parameter must lose to count as stuck
_PEAK = 0.1  # of the largest learning rate so far: below it a schedule has ended and updates are meant to vanish
_CONVERGED = 0.02  # of the largest gradient norm so far: below it there is little left to learn


def count_summary(n: int, n_true: int) -> Summary:
    """Summarise n elements of which a claim holds for n_true, as that many ones among zeros."""
    any_true, all_true = float(n_true > 0), float(n_true == n > 0)
    return Summary(n=n, n_hist=n, n_zero=n - n_true, min=all_true if n else None, max=any_true if n else None,
                   absmin=1.0 if n_true else None, absmax=any_true, sum=float(n_true), sumsq=float(n_true))  # fmt: skip


def share(reading: Reading) -> float:
    """Return the share of elements for which the claim of a row holds; 0 if it has none."""
    return reading.summary.sum / reading.summary.n if reading.summary.n else 0.0


def rows_at(window: Window, port: str) -> list[Reading]:
    """Return the rows of a port in this step, of single parameters only."""
    return [r for r in window.by_phase["optimizer"] if r.port == port and r.site != SITE]


def total_at(window: Window, port: str) -> Reading | None:
    """Return the row of a port for all parameters together; None if there is none."""
    return next((r for r in window.by_phase["optimizer"] if r.port == port and r.site == SITE), None)


def streak(window: Window, port: str, at_least: float) -> list[Reading]:
    """Return the rows of `updates` up to this step in which the share was reached without a break, oldest first.

    A step in which training was not meant to move much breaks it: the learning rate still rising or at its end, or a
    gradient that has become small beside what it was.
    """
    row = total_at(window, port)
    if row is None or share(row) < at_least:
        return []
    rates, idle = _rates(window), _idle_steps(window)
    found: list[Reading] = []
    for earlier in reversed((*window.history.rows(SITE, port), row)):
        is_rising = rates.get(earlier.step, 0.0) > rates.get(earlier.step - 1, math.inf) * (1 + 1e-6)
        if share(earlier) < at_least or is_rising or earlier.step in idle:
            break
        found.append(earlier)
    return found[::-1]


def _rates(window: Window) -> dict[int, float]:
    """Return the learning rates of the last steps."""
    records = (*window.history.records, *([window.record] if window.record else []))
    return {r.step: r.lr for r in records if r.lr is not None}


def _idle_steps(window: Window) -> set[int]:
    """Return the steps at the end of a schedule, or with a gradient that has become small."""
    found: set[int] = set()
    for port, least in ((GRAD_SHARE, _CONVERGED), (LR_SHARE, _PEAK)):
        now = total_at(window, port)
        rows = (*window.history.rows(SITE, port), *([now] if now else []))
        found.update(r.step for r in rows if r.summary.sum < least)
    return found


def total(rows: Sequence[Reading]) -> tuple[int, int]:
    """Return (n, how many of them the claim holds for) over several rows."""
    return sum(r.summary.n for r in rows), round(sum(r.summary.sum for r in rows))
