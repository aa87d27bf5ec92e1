"""Data come again, or are left out, in a run in which that was not so before.

What it means
    The program trains twice on the same data, or not on all: an iterator that was not moved on, a batch that was left
    in a variable, a loader that hands out the same memory, workers of a stream that each read all of it, a resumed run
    that begins its data anew or goes on at another place.

How it is decided
    Digests of all tensors that the model and the loss were given, at every step, and of their rows (of large batches of
    a part of them, the same part each time). A batch whose tensors are equal, bit for bit, to those of one before,
    where at least 32 batches did not come again. Rows of a batch that are equal, or that came before while others of
    the same pass were yet to come, in numbers that chance does not explain. Batches that come in the same order in each
    pass, or samples in the order of their indices, where the order goes on elsewhere. Rows that other passes have and
    the one in which the run was resumed has not: of the first pass that is known once the second is over. Equal batches
    from each worker of an `IterableDataset`. Two batches in a row, of floating-point numbers, that hold one row many
    times over, another one each, with labels that differ. A new pass over all data, a single batch, and repeated passes
    over each batch are not remarked on, nor is what is drawn with replacement, nor a batch that is used for one more
    update, where one before was.

What to do
    Look at how the batch of this step was taken from its loader; after a checkpoint, at what of the loader and of its
    sampler was saved; in a stream, at `torch.utils.data.get_worker_info()`.

When it is wrong
    When it is meant: data of which some are used more often than others, from some step on. A batch of few samples
    comes again by chance (a note). A first stage of few data, gone through twice with a checkpoint between, looks as a
    stream that was read anew (a note).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypocenter.detect.batch_rows import Copies, Rows, digests, key_of
from hypocenter.detect.batches import Again, Jumped, batches_of, ranks_resumed
from hypocenter.detect.engine import rule
from hypocenter.detect.window import Window
from hypocenter.nouns import Confidence, Finding, Remedy, Severity

NEAR = 8  # batches: nobody draws the same so soon again by chance
_SHOWN = 8  # rows, steps


@rule(
    "HC411",
    "data",
    severity="warning",
    reads=("batch",),
    quiet=lambda series: series.batches.are_all_new,
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the first batch that comes again."""
    rows, known = window.by_phase["data"], window.history
    if n_ranks := ranks_resumed(rows):
        known.repeats.resume()
        known.loaders.resume()
        known.row_track.resume(window.step, n_ranks)
    jumped = known.loaders.jumped(rows, window.step)
    for microbatch, batch in batches_of(rows).items():
        again = known.repeats.add(batch, window.step)
        if isinstance(again, Again):
            known.told_again.add(window.step)
            yield _again(window, microbatch, again)
        elif again is not None:
            jumped = again
        if (workers := known.loaders.copies(batch, rows, window.step)) is not None:
            yield _workers(window, *workers)
        if (key := key_of(batch)) is None:
            continue
        if n_rows := known.one_row.add(key, batch):
            yield _one_row(window, microbatch, n_rows)
        of_rows = digests(key)
        if (copies := known.row_track.copies(of_rows)) is not None:
            yield _copies(window, microbatch, copies)
        came = known.row_track.add(of_rows, window.step, microbatch)
        if came is not None and came.step not in known.told_again:
            known.told_again.add(came.step)
            yield _rows(window, came)
    if jumped is not None and jumped.step not in known.told_again:
        known.told_again.add(jumped.step)
        yield _jumped(window, jumped)


def _again(window: Window, microbatch: int, again: Again) -> Finding:
    where = f"of step {again.step}" if again.step != window.step else "before it in the same step"
    back = "the batch before" if again.n_back == 1 else f"{again.n_back} batches ago"
    return _finding(
        window,
        window.step,
        microbatch,
        f"the batch is the one {where} again",
        (
            f"all of its tensors are equal, bit for bit, to those of {back}",
            f"none of the {again.n_before} batches before came again",
        ),
        is_sure=again.n_back <= NEAR,
    )


def _copies(window: Window, microbatch: int, copies: Copies) -> Finding:
    return _finding(
        window,
        window.step,
        microbatch,
        f"{len(copies.places)} rows of the batch are copies of one another",
        (
            f"rows {_some(copies.places)}, bit for bit, of {copies.n_rows} that were looked at",
            f"in {copies.n_batches} batches before there were fewer, if any",
        ),
        samples=copies.places,
    )


def _one_row(window: Window, microbatch: int, n_rows: int) -> Finding:
    return _finding(
        window,
        window.step,
        microbatch,
        f"all {n_rows} rows of the batch are one and the same",
        ("all that the model is given is equal for each row, bit for bit, and the labels are not",
         "so it was in the batch before, with another row"),
    )  # fmt: skip


def _rows(window: Window, came: Rows) -> Finding:
    if not came.n_found:
        return _finding(
            window,
            came.step,
            0,
            f"{came.left_out or 0.0:.0%} of the rows of a pass are left out where the run goes on from a checkpoint",
            ("other passes used all of them", "rows are known by their digests; of large batches a part is"),
        )
    share = came.n_found / came.n_rows
    since = "since it went on from a checkpoint the run" if came.is_resumed else "the run"
    why = [
        f"{share:.0%} of the rows of {came.n_batches} {'batch' if came.n_batches == 1 else 'batches'} were used "
        f"in steps {_some(came.before)}",
        "others had not come yet, so this is no new pass over the data"
        + (f": {came.left_out:.0%} of the rows of a pass" if came.left_out else ""),
    ]
    return _finding(
        window,
        came.step,
        came.microbatch,
        f"{since} is given rows that it has used already",
        tuple(why),
        samples=came.places,
        is_sure=not came.may_be_meant and (came.is_resumed or share >= 0.5),
    )


def _workers(window: Window, step: int, microbatch: int, n_workers: int) -> Finding:
    return _finding(
        window,
        step,
        microbatch,
        f"each of {n_workers} workers of the data loader hands out the same batches",
        (f"each batch of the stream came {n_workers} times in a row, from the start",),
        remedy=Remedy(
            action="split-over-workers",
            text="in __iter__ let each worker yield its own part: info = torch.utils.data.get_worker_info(), then "
            "itertools.islice(items, info.id, None, info.num_workers)",
        ),
    )


def _jumped(window: Window, jumped: Jumped) -> Finding:
    n, what = abs(jumped.n), jumped.what if abs(jumped.n) > 1 else jumped.what.removesuffix("es").removesuffix("s")
    told = f"{n} {what} of the data {'are left out' if jumped.n > 0 else 'come again'}"
    checkpoint = " where the run goes on from a checkpoint" if jumped.is_resumed else ""
    order = "in the order of their indices" if jumped.what == "samples" else "in the order of the pass before"
    return _finding(
        window,
        jumped.step,
        jumped.microbatch,
        told + checkpoint,
        (f"{jumped.n_before} batches before it came {order}, and so do those after it",),
        is_sure=jumped.is_resumed,
    )


def _finding(
    window: Window,
    step: int,
    microbatch: int,
    title: str,
    why: tuple[str, ...],
    *,
    is_sure: bool = True,
    samples: tuple[int, ...] = (),
    remedy: Remedy | None = None,
) -> Finding:
    severity: Severity = "warning" if is_sure else "note"
    confidence: Confidence = "proven" if is_sure else "possible"
    return Finding(
        code="HC411",
        kind="data",
        severity=severity,
        title=title,
        step=step,
        microbatch=microbatch,
        rank=window.rank,
        phase="data",
        site="batch",
        cause="data-repeats",
        why=why,
        confidence=confidence,
        samples=samples,
        remedy=remedy,
    )


def _some(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return ", ".join(map(str, numbers[:_SHOWN])) + more
