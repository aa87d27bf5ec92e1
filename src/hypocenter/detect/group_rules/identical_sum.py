"""The same gradient is summed over a group that all of whose ranks have it.

What it means
    An all-reduce adds up what every rank of a group already holds in full: the result is the gradient times the size of
    the group, and the optimizer uses it like that. So it is with a router whose tokens, or whose auxiliary loss, are
    the same on all tensor-parallel ranks; and with gradients that DDP has averaged, and the program's own loop adds up
    once more. That parameter learns at a multiple of its learning rate, or its auxiliary loss has a multiple of its
    coefficient, and the multiple changes with the number of ranks.

How it is decided
    At the steps of `collectives`, digests of what goes into an all-reduce (sum) are the same bits on every rank of its
    group, and what comes out of it is, bit for bit, the gradient that the optimizer is given (steps of `replicas`). An
    average that is divided afterwards, a maximum, a flag, a loss for the log, a gradient of zero: none of these is.
    Over data parallelism it is a warning, and the ranks' own gradients must have differed before: what they summed had
    been reduced already.

What to do
    Leave the all-reduce out, divide by the size of the group, or mark the parameter as replicated, not partial.
    Under DDP leave gradients to it.

When it is wrong
    Beside data parallelism it is a note because the program may mean it: when the loss, the coefficient of the
    auxiliary loss, or the gradient itself has been divided by the size of the group beforehand, the sum is right, if
    needless.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.local_rows import LOCAL
from hypocenter.detect.panel import Panel
from hypocenter.detect.replica_rows import GRAD
from hypocenter.nouns import Finding, Remedy

CODE = "HC334"
_SUM = "all_reduce.sum"
_DATA = "dp"  # ranks that begin with equal gradients there have equal data, which is another rule's business


@group_rule(CODE, "config", severity="note", reads=("comm", "digest", "local"), asked="rows")
def check(panel: Panel) -> Iterator[Finding]:
    """Report sums of equal gradients at the first step that has them, once for each parameter."""
    said = panel.history.notes[CODE]
    axes = {ranks: axis for axis in ("tp", "cp", "ep", "pp", _DATA) for ranks in panel.groups(axis)}
    if not axes or not panel.table.num_rows:
        return
    for group, axis in axes.items():
        found = {name: norm for name, norm in _used_sums(panel, group).items() if name not in said}
        if found and axis == _DATA:
            apart = _began_apart(panel, group)
            found = {name: norm for name, norm in found.items() if name in apart}
        if found:
            said.update(found)
            yield _finding(panel, group, axis, list(found))


def _began_apart(panel: Panel, group: tuple[int, ...]) -> set[str]:
    """Return the parameters whose gradients differed over this group before any reduction."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = panel.where(port=LOCAL)
    is_here = pc.is_in(table["rank"], value_set=pa.array(group, pa.int32()))
    table = table.filter(pc.and_(pc.is_valid(table["digest"]), is_here))
    counted = table.group_by("site").aggregate([("digest", "count_distinct"), ("rank", "count_distinct")])
    return {
        site
        for site, n_digests, n_ranks in zip(
            *(counted[name].to_pylist() for name in ("site", "digest_count_distinct", "rank_count_distinct")),
            strict=True,
        )
        if n_digests > 1 and n_ranks == len(group)
    }


def _used_sums(panel: Panel, group: tuple[int, ...]) -> Mapping[str, float]:
    """Return parameters whose gradient is the sum of equal values over this group, in the order of the calls."""
    import pyarrow.compute as pc

    calls = _equal_inputs(panel, group)
    if not calls:
        return {}
    gradients = panel.where(port=GRAD)
    first = gradients.filter(pc.equal(gradients["rank"], group[0]))
    by_digest: dict[int, tuple[str, int]] = {
        digest: (site, n)
        for digest, site, n, sumsq in zip(
            *(first[name].to_pylist() for name in ("digest", "site", "n", "sumsq")), strict=True
        )
        if sumsq > 0
    }
    used: dict[str, float] = {}
    for digest, n in calls:
        site, n_gradient = by_digest.get(digest, ("", 0))
        if site and n == n_gradient:
            used[site] = float(len(group))
    return used


def _equal_inputs(panel: Panel, group: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return (digest of the result, elements) of each sum over the group into which every rank put the same bits."""
    import pyarrow.compute as pc

    table = panel.where(phase="comm", op=_SUM)
    if not table.num_rows:
        return []
    table = table.filter(pc.greater_equal(pc.list_value_length(table["names"]), 3))
    table = table.filter(pc.equal(pc.list_element(table["names"], 1), ",".join(map(str, group))))
    if not table.num_rows:
        return []
    inputs = table.filter(pc.and_(pc.starts_with(table["port"], "in["), pc.greater(table["sumsq"], 0)))
    outputs = table.filter(pc.and_(pc.starts_with(table["port"], "out["), pc.equal(table["rank"], group[0])))
    keys = ["names", "call", "port"]
    flat = inputs.set_column(inputs.schema.get_field_index("names"), "names", pc.list_element(inputs["names"], 2))
    equal = flat.group_by(keys).aggregate([("digest", "count_distinct"), ("rank", "count_distinct"), ("n", "max")])
    is_same = {
        (name, call, port.removeprefix("in")): n
        for name, call, port, n_digests, n_ranks, n in zip(
            *(equal[c].to_pylist() for c in (*keys, "digest_count_distinct", "rank_count_distinct", "n_max")),
            strict=True,
        )
        if n_digests == 1 and n_ranks == len(group)
    }
    columns: list[list[Any]] = [outputs[name].to_pylist() for name in ("names", "call", "port", "digest", "order")]
    results = [
        (order, digest, is_same[key])
        for names, call, port, digest, order in zip(*columns, strict=True)
        if (key := (names[2], call, port.removeprefix("out"))) in is_same and digest is not None
    ]
    return [(digest, n) for _, digest, n in sorted(results)]


def _finding(panel: Panel, group: tuple[int, ...], axis: str, names: list[str]) -> Finding:
    n, is_data = len(group), axis == _DATA
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return Finding(
        code=CODE,
        kind="config",
        severity="warning" if is_data else "note",
        title=f"the gradient of {names[0]}{others} is {n} times what every rank of {axis} already had",
        step=panel.step,
        rank=group[0],
        phase="grad",
        site=names[0],
        port="grad",
        param=names[0],
        op=_SUM,
        cause="program-error" if is_data else "implementation-mismatch",
        limit=1.0,
        actual=float(n),
        why=(
            f"ranks {', '.join(map(str, group[:8]))}{', ...' if n > 8 else ''} ({axis}) put the same bits into an "
            "all-reduce that sums",
            "what came out is, bit for bit, the gradient that the optimizer is given: nothing divided it",
            *(("the gradients that these ranks had made themselves differ: they were reduced before",) * is_data),
            *((f"the same for {', '.join(names[1:9])}",) if len(names) > 1 else ()),
        ),
        confidence="proven" if is_data else "possible",
        remedy=Remedy(
            action="no-sum",
            targets=tuple(names[:8]),
            text="leave the second reduction out: gradients have been averaged before it"
            if is_data
            else f"leave the all-reduce over {axis} out, or divide by {n}, unless the loss was divided before",
        ),
    )
