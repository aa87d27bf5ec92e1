"""Row names of what the misuse observers measure: the contract between them and the rules HC211 to HC219.

All have port `value`. Those of a loss scaler are of phase `scaler`, the others of phase `optimizer`. Where nothing is
out of the ordinary, most are not written: a healthy step costs no row. "Carries the scale" means: gradients of a
scaled loss that nothing has unscaled yet. Factors are medians over parameters of the ratio of two L2 norms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hypocenter.detect.window import Window
from hypocenter.nouns import Reading

CLIP_FACTOR = "misuse.clip_factor"  # what clipping multiplied gradients by that carry the scale; module: the function
CLIP_NORM = "misuse.clip_norm"  # their total norm as the clip saw it
HAND_FACTOR = "misuse.hand_factor"  # what the program multiplied gradients by before the scaler unscales them
HAND_NORM = "misuse.hand_norm"  # their total norm as backward left it
ASKED_SCALE = "misuse.asked_scale"  # times that the program read the scale in this step
APPLIED_TO_SOME = "misuse.applied_to_some"  # likewise, of one of several losses, where others carry the scale
APPLIED = "misuse.applied_scale"  # what the loss was multiplied by before backward: 1 means never
LEFT_IN = "misuse.scale_left_in"  # the scale that is in gradients which an optimizer uses without its scaler
OTHER_SCALE = "misuse.other_scale"  # a scale, not that of the step, under which a part of the gradients was made;
# module: ADJUST where MindSpore's `adjust` moves it, not `update`
ADJUST = "adjust"
LATE = "misuse.late_backwards"  # backwards of a scaled loss that added to gradients already unscaled
FRESH = "misuse.fresh_scaler"  # updates that the optimizer has behind it, while the scaler is as new; module: how known
BFLOAT16 = "misuse.bfloat16_scaler"  # the step of an enabled scaler in which nothing is of type float16

SCHEDULE = "misuse.schedule"  # steps of the schedule so far; module: class of the scheduler or of the average
ON_SKIPPED = "misuse.schedule_on_skipped"  # of these, after a skipped update
SKIPPED = "misuse.schedule_skipped"  # skipped updates so far
UPDATES = "misuse.schedule_updates"  # updates so far that were not skipped
DRIFT = "misuse.schedule_drift"  # learning rate moved after skipped updates, as a share of its full height
FROM_TWO_LINES = "misuse.schedule_from_two_lines"  # steps for each update, of two lines: `names`
OF_ANOTHER = "misuse.schedule_of_another"  # updates of an optimizer with the same parameters, which is not its own
PAST_END = "misuse.schedule_past_end"  # its length in steps, at the first after it that raises the learning rate
HARDLY = "misuse.schedule_hardly"  # its length in steps, as many as the run had updates; `names`: steps that it made
ANEW = "misuse.schedule_anew"  # updates that its optimizer had made before, when it began at 0
STATE_ANEW = "misuse.state_anew"  # step at which a schedule went on, when the state of its optimizer began
PER_MICROBATCH = "misuse.schedule_per_microbatch"  # times that it steps for each update, once a micro-batch
OVER = "misuse.schedule_over"  # updates up to the last at a learning rate of 0; `names`: all of its updates, and the
# micro-batches of each, where it steps once for each of these
SCHEDULE_END = "misuse.schedule_end"  # the counts above are those of the whole run

BACKWARD = "misuse.autocast_backward"  # backward ran inside autocast; module: the dtype
BACKWARD_ERROR = "misuse.autocast_backward_error"  # relative, of the gradient most changed by that; module: its name
STALE = "misuse.autocast_stale"  # relative difference of the loss to that with the weights as they are

HIDDEN_LOSS = "misuse.hidden_loss"  # a logger that shows a finite value for this step's loss; module: its name
HIDDEN_GRADIENT = "misuse.hidden_gradient"  # the same for gradients

TRAINED = "misuse.trained_parameters"  # parameters that got gradients in the first updates; written at the end ...
STILL = "misuse.still_parameters"  # ... where most of them are what they were at the start: so many


def value_of(window: Window, site: str) -> float | None:
    """Return the value of this name at this step; None without such a row, NaN when it was not finite."""
    row = row_of(window.readings, site)
    return None if row is None else _value(row)


def row_of(readings: Iterable[Reading], site: str) -> Reading | None:
    """Return the first row of this name that the run itself made; None if there is none."""
    return next((r for r in readings if r.site == site and r.port == "value" and not r.replay), None)


def past(window: Window, site: str) -> Iterator[tuple[int, float]]:
    """Yield (step, value) of earlier rows of this name, oldest first."""
    return ((r.step, _value(r)) for r in window.history.rows(site, "value"))


def scales(window: Window) -> dict[int, float]:
    """Return the loss scale by step, of this and earlier steps, where the update was not skipped."""
    records = [*window.history.records, *([window.record] if window.record is not None else [])]
    return {r.step: r.loss_scale for r in records if r.loss_scale and not r.skipped}


def _value(row: Reading) -> float:
    return row.summary.sum if not row.summary.n_nonfinite else float("nan")
