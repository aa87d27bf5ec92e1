"""A stage computes with the activation of another micro-batch.

What it means
    A stage of a pipeline is given, in one micro-batch, the very activation that it was given in another, although the
    first stage had other data: a buffer was read before the new activation had arrived, or is used for two receives.
    Its outputs, and the gradients of its parameters, are then those of other data than its labels.

How it is decided
    From digests of what models are called with in each micro-batch, of floating-point numbers those of a sample. In a
    step in which one rank is given whole numbers, other ones in each micro-batch, and another rank floating-point
    numbers, as often, these must differ from micro-batch to micro-batch as well. It fires when they do not at two
    steps, in the same bits, and are no constant.

What to do
    Wait for the receive (`req.wait()`) before the buffer is read, and give each micro-batch a buffer of its own.

When it is wrong
    Where ranks train models of different kinds, and one of them is given the same data again and again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.panel import Panel
from hypocenter.detect.replica_rows import BATCH_LOSS, BATCH_PORT, BATCH_PREFIX, FIELD_PORT
from hypocenter.nouns import Finding, Remedy

CODE = "HC338"
STEPS = 2
_Place = tuple[int, int, int]  # rank, micro-batch, and the one before whose activation it is


@dataclass(slots=True)
class _Given:
    """The values of one argument of one rank's model, by micro-batch."""

    is_whole: bool
    digests: dict[int, int] = field(default_factory=dict)
    constant: set[int] = field(default_factory=set)  # micro-batches


@group_rule(CODE, "data", severity="warning", reads=("data",), asked="unlike")
def check(panel: Panel) -> Iterator[Finding]:
    """Report at the second step at which it is seen; it began at the first."""
    steps: list[tuple[int, _Place]] = panel.history.notes[CODE].setdefault("steps", [])
    if len(steps) >= STEPS:
        return
    given = _given(panel)
    numbers = {
        len(each.digests)
        for of_rank in given.values() for each in of_rank.values()
        if each.is_whole and len(set(each.digests.values())) == len(each.digests) > 1
    }  # fmt: skip
    place = next((p for rank, of_rank in sorted(given.items()) if (p := _repeated(rank, of_rank, numbers))), None)
    if place is None:
        return
    steps.append((panel.step, place))
    if len(steps) == STEPS:
        yield _finding(steps)


def _given(panel: Panel) -> Mapping[int, Mapping[str, _Given]]:
    import pyarrow.compute as pc

    table = panel.where(phase="data")
    is_given = pc.and_not(pc.starts_with(table["site"], BATCH_PREFIX), pc.starts_with(table["site"], BATCH_LOSS))
    table = table.filter(pc.and_(is_given, pc.is_valid(table["digest"])))
    names = ("rank", "site", "port", "microbatch", "digest", "dtype", "min", "max")
    found: defaultdict[int, dict[str, _Given]] = defaultdict(dict)
    columns = (table[name].to_pylist() for name in names)
    for rank, site, port, microbatch, digest, dtype, low, high in zip(*columns, strict=True):
        is_whole = dtype in ("int64", "int32")
        if port != (BATCH_PORT if is_whole else FIELD_PORT):  # of floats there are samples at every step
            continue
        each = found[rank].setdefault(site, _Given(is_whole=is_whole))
        each.digests[microbatch] = digest
        if low is None or high is None or not low < high:
            each.constant.add(microbatch)
    return found


def _repeated(rank: int, given: Mapping[str, _Given], numbers: set[int]) -> _Place | None:
    """Return a micro-batch that is given the activations of an earlier one, on a rank without other inputs, or None."""
    if any(each.is_whole for each in given.values()):
        return None
    for each in given.values():
        first: dict[int, int] = {}
        for microbatch, digest in sorted(each.digests.items()):
            if digest in first and microbatch not in each.constant and len(each.digests) in numbers:
                return rank, microbatch, first[digest]
            first.setdefault(digest, microbatch)
    return None


def _finding(steps: list[tuple[int, _Place]]) -> Finding:
    (step, (rank, microbatch, other)), *_ = steps
    return Finding(
        code=CODE, kind="data", severity="warning", step=step, rank=rank, microbatch=microbatch, phase="data",
        title=f"micro-batch {microbatch} is computed with the activation of micro-batch {other}", site="batch.in",
        cause="program-error", confidence="likely",
        why=(
            f"on rank {rank} the model is called with the same bits in both, and the first stage with other data",
            f"so at steps {' and '.join(str(at) for at, _ in steps)}",
        ),
        then=("the loss compares labels with the outputs of other data",),
        remedy=Remedy(action="wait-for-receive", text="wait for the receive before its buffer is read"),
    )  # fmt: skip
