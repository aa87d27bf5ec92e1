"""Reading the data set changes it, or takes apart what belongs together.

What it means
    A program reads its data set as if it were a table: what sample 7 is does not depend on what was read before, and
    the label beside it is its own. Here it is not so. `__getitem__` writes into the sample that the data set keeps
    (`image[...] = 0` on a view), so that holes and noise add up from pass to pass; or it gives out one array for all
    samples, which the next one overwrites; or the collate function sorts some fields and leaves others as they were.

How it is decided
    At the first batch of a pass of a `DataLoader`, of up to four passes, the process forks, and while training goes on
    the child reads up to three samples of that batch again. *Read only*: with the same draws a sample is the same
    twice, and is another one once it was read with other draws; where the data set holds it, that has changed too. Or
    what is given out is what the data set holds, and each reading changes it. *One by one*: a sample is another one
    after the next one was read, and both lie in one memory. *Together*: the collate function is given the batch, and
    again with one sample twice, which tells whose each row of a field is; rows of two fields are of different samples,
    and are not once the samples come in the order into which it puts the first field.

    *All of it*: a sampler that skips the first batches, as `accelerate.skip_first_batches` makes it, begins a second
    pass.

    The child can open nothing for writing, reach nobody and touch no device: where reading would, nobody can tell. It
    is not asked of iterable data sets, on several ranks unless the loader has workers itself, where memory is shared
    with other processes, and with `--relations never`.

What to do
    Change a copy (`image = image.clone()`), give out an array of its own for each sample, or put every field into the
    same order.

When it is wrong
    Data sets that are meant to learn from what is read, and hold it in no array of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import ALL_OF_IT, DATA_SET
from hypocenter.detect.window import Window
from hypocenter.in_words import some
from hypocenter.nouns import Confidence, Finding, Reading, Remedy

_READ_ONLY, _ONE_BY_ONE = "read only", "one by one"
_SHOWN = 8  # indices


@rule(
    "HC415", "data", severity="warning", reads=("optimizer",), asked="rows",
    not_in={"mindspore": "its data sets run in threads and processes of their own, which no fork of Python has"},
)  # fmt: skip
def check(window: Window) -> Iterator[Finding]:
    """Fire at the first step of the pass at which it is seen."""
    for row in window.by_phase["optimizer"]:
        if row.port != DATA_SET:
            continue
        title, why, then, remedy = _said(row)
        confidence: Confidence = "proven" if row.names[-1] == "proven" else "likely"
        yield Finding(
            code="HC415", kind="data", severity="warning", step=int(row.names[0]), rank=window.rank, site=row.module,
            phase="data", title=title, cause="data-mismatch", source=row.source, why=why, then=(then,), remedy=remedy,
            confidence=confidence,
        )  # fmt: skip


def _said(row: Reading) -> tuple[str, tuple[str, ...], str, Remedy]:
    """Return title, reasons, consequence and remedy."""
    name, (_, field, other, *indices, _) = row.module, row.names
    if row.op == ALL_OF_IT:
        n = round(row.summary.sum)
        return (
            f"each pass over {name} leaves out its first {n} batches",
            (f"what skips them, to resume in the midst of a pass, begins pass {row.call}",),
            "these batches are not seen again; in an order that stays, they are the same samples",
            Remedy(action="skip-once", text="read what skip_first_batches gives in the resumed pass, then the loader"),
        )
    samples = f"sample{'s' if len(indices) > 1 else ''} {some(indices, _SHOWN)}"
    n_seen = f"seen at {round(row.summary.sum)} of {row.call} samples that were read again in a child of this process"
    if row.op == _READ_ONLY:
        where = (f"reading it changes {field}, where the data set holds it",) if field else ()
        return (
            f"reading a sample of {name} changes the data set",
            (f"{samples}, read again with the same draws, came out otherwise than before", *where, n_seen),
            "changes add up from pass to pass: the data that is trained on is less and less the data set's",
            Remedy(action="copy-sample", text="change a copy of the sample: image = image.clone()"),
        )
    if row.op == _ONE_BY_ONE:
        return (
            f"samples of {name} lie in one memory: the next one overwrites the last",
            (f"{field} of {samples} was another one once the next sample was read, in the same memory", n_seen),
            "all samples of a batch hold the values of its last one",
            Remedy(action="own-memory", text="return a copy: array.copy(), tensor.clone()"),
        )
    return (
        f"{name} parts what belongs together: field {other} is not put into the order of {field}",
        (
            f"rows of fields {field} and {other} come from different samples in a batch of {samples}",
            f"given in the order into which {field} is put, the same samples keep together",
        ),
        "labels stand beside samples that they are not of",
        Remedy(action="sort-all", text=f"put field {other} into the same order as {field}"),
    )
