"""Rows about accumulated gradients, as hypocenter.detect.update_rows and microbatch_rows describe them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hypocenter.detect import microbatch_rows as micro
from hypocenter.detect import update_rows
from hypocenter.nouns import Reading
from hypocenter.session.observers.optimizer_rows import count_row, number_row

Order = Callable[[], int]


def addition_rows(
    name: str, dtype: str, shape: tuple[int, ...], numbers: Sequence[float], *, n_added: int, step: int, order: Order
) -> list[Reading]:
    """Return rows of the accumulator that was followed; none if something else writes to it between micro-batches.

    Args:
        numbers: as `Additions.numbers` gives them, on the host.
    """
    n, n_lost, n_mismatched, product, square = numbers
    if n_mismatched or not square > 0:
        return []
    lost = round(n), round(n_lost)
    rows: list[Reading] = []
    for site in (name, update_rows.SITE):
        rows += [
            number_row(site, update_rows.ACCUMULATED, step, order(), product / square, dtype=dtype, call=n_added),
            count_row(
                site, update_rows.ADDITION_LOST, step, order(), lost, dtype=dtype, shape=shape, call=n_added
            ),
        ]  # fmt: skip
    return rows


def not_added_rows(
    pairs: Sequence[tuple[str, int, int]], step: int, microbatch: int, order: Order
) -> list[Reading]:  # fmt: skip
    """Return rows of a micro-batch whose gradient is not in what was accumulated; none where it is.

    Args:
        pairs: (parameter, elements that were to change, those that did not) of all that were looked at.
    """
    lost = [pair for pair in pairs if pair[1] == pair[2]]
    if not lost:
        return []
    name, n, n_lost = lost[0]
    counts = [(micro.SITE, (len(pairs), len(lost))), (name, (n, n_lost))]
    rows = [count_row(site, micro.NOT_ADDED, step, order(), pair, call=microbatch + 1) for site, pair in counts]
    return [replace(row, microbatch=microbatch) for row in rows]


def recompute_rows(
    name: str, kind: str, step: int, gap: float, gap_in: float | None, zeros: tuple[int, int], order: Order
) -> list[Reading]:  # fmt: skip
    """Return rows of the first module whose recomputed output is another.

    Args:
        kind: its class.
        gap: of its outputs, relative; gap_in: of its inputs, where it is known.
        zeros: elements of the output, and those that are zero in one of the two only.
    """
    rows = [
        count_row(micro.SITE, micro.RECOMPUTE_ZEROS, step, order(), zeros, module=name),
        number_row(name, micro.RECOMPUTE_GAP, step, order(), gap, module=kind),
    ]
    if gap_in is not None:
        rows.append(number_row(name, micro.RECOMPUTE_IN, step, order(), gap_in, module=kind))
    return rows
