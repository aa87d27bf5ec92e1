"""Collectives whose results are known to the bit, in several formats and sizes; what is wrong is traced to a rank."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hypocenter.examine import patterns
from hypocenter.examine.device import Device, brief, kind_of

OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
_REPEATS_WHEN_WRONG = 2  # further tries: does it come again?
_SHOWN = 6  # wrong cases told of, of each collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that communicate, numbered from 0; `process_group` None is all of them."""

    rank: int
    size: int
    device: Device
    op_timeout_s: float
    process_group: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One collective in one format and one size."""

    op: str
    dtype: torch.dtype
    n_elements: int  # of what each rank puts in (all-reduce), or of each part

    @property
    def named(self) -> dict[str, Any]:
        """Operation, format and size, as data."""
        return {"op": self.op, "dtype": patterns.NAMES[self.dtype], "n_elements": self.n_elements}


def cases(device: Device, n_ranks: int) -> list[Case]:
    """Return all cases that are run: one number, an odd count, and one of many packets."""
    largest = min(131_072 if device.is_cpu else 1 << 20, max(1031, (1 << 24) // n_ranks))
    sizes = {op: (1, 1031, largest if op == "all-reduce" else max(1, largest // n_ranks)) for op in OPS}
    return [Case(op=op, dtype=dtype, n_elements=n) for op in OPS for dtype in patterns.EXACT for n in sizes[op]]


def launch(case: Case, group: Group, mine: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """Start the collective; return its work, and the tensor in which the result will be."""
    pg, n = group.process_group, case.n_elements
    if case.op == "all-reduce":
        result = mine.clone()
        return dist.all_reduce(result, group=pg, async_op=True), result
    if case.op == "all-gather":
        result = mine.new_empty(group.size * n)
        return _named("all_gather_single", "all_gather_into_tensor")(result, mine, group=pg, async_op=True), result
    if case.op == "reduce-scatter":
        result = mine.new_empty(n)
        return _named("reduce_scatter_single", "reduce_scatter_tensor")(result, mine, group=pg, async_op=True), result
    result = torch.empty_like(mine)
    return dist.all_to_all_single(result, mine, group=pg, async_op=True), result


def _named(new: str, old: str) -> Any:
    """Return a function of torch.distributed that has a new name since torch 2.13."""
    return getattr(dist, new, None) or getattr(dist, old)


def done(work: Any, group: Group) -> None:
    """Wait until a work is done.

    Raises:
        Stuck: it did not end (accelerators); RuntimeError of the backend: it did not end, or the other side is gone.
    """
    if work is not None:
        if group.device.is_cpu:
            work.wait(timedelta(seconds=group.op_timeout_s))
        else:
            work.wait()  # only orders streams: a time-out here would be that of a kernel already started
    group.device.finish(time.monotonic() + group.op_timeout_s)


def put_in(case: Case, group: Group) -> torch.Tensor:
    """Return what this rank contributes, int64 on the CPU."""
    n = case.n_elements * (group.size if case.op in ("reduce-scatter", "all-to-all") else 1)
    return patterns.contribution(group.rank, group.size, n, case.dtype)


def expected(case: Case, group: Group) -> torch.Tensor:
    """Return what must come out on this rank, int64 on the CPU."""
    n, rank, size = case.n_elements, group.rank, group.size
    own_part = rank * n
    if case.op == "all-reduce":
        return patterns.total(size, n, case.dtype)
    if case.op == "reduce-scatter":
        return patterns.total(size, n, case.dtype, start=own_part)
    if case.op == "all-gather":
        return torch.cat([patterns.contribution(r, size, n, case.dtype) for r in range(size)])
    return torch.cat([patterns.contribution(r, size, n, case.dtype, start=own_part) for r in range(size)])


def run_case(case: Case, group: Group, at: Callable[[str], None]) -> dict[str, Any] | None:
    """Run a case once; return None when the result is right, else what is wrong with it."""
    mine = put_in(case, group).to(case.dtype)
    there = mine.to(group.device.torch)
    name = f"{case.op} of {case.n_elements} {patterns.NAMES[case.dtype]}"
    at(f"starting {name}")
    work, result = launch(case, group, there)
    at(f"waiting in {name}")
    done(work, group)
    at(f"comparing {name}")
    return compare(result.cpu(), case, group, was=mine, is_now=there.cpu())


def compare(
    result: torch.Tensor, case: Case, group: Group, *, was: torch.Tensor, is_now: torch.Tensor
) -> dict[str, Any] | None:
    """Return what is wrong with a result, or with what was put in; None when nothing is."""
    right = expected(case, group).to(case.dtype)
    input_ok = torch.equal(was, is_now)
    if torch.equal(result, right) and input_ok:
        return None
    wrong = (result != right).nonzero().flatten()
    found: dict[str, Any] = {**case.named, "n_wrong": int(wrong.numel()), "n": right.numel(), "input_ok": input_ok}
    if wrong.numel():
        first = int(wrong[0])
        found["first"] = {"index": first, "expected": float(right[first]), "actual": float(result[first])}
        found["parts"] = (wrong // case.n_elements).unique()[:4096].tolist()  # whose part, where each has one
        error = result.double() - right.double()
        found["digest"] = zlib.crc32(error.numpy().tobytes())
        if case.op == "all-reduce":
            found["blamed"] = patterns.whose(error, group.size, case.dtype)
    return found


def examine(group: Group, at: Callable[[str], None], out: dict[str, Any], go: Callable[[str], bool]) -> None:
    """Run all cases; fill `out`: {op: {"n_cases", "n_wrong", "dtypes", "wrong": [...], "skipped", "error"}}.

    Raises:
        Stuck, RuntimeError: the group is of no use any more; the error is in `out` too.
    """
    for case in cases(group.device, group.size):
        entry = out.setdefault(case.op, {"n_cases": 0, "n_wrong": 0, "dtypes": [], "wrong": [], "skipped": []})
        if not go(f"{case.op}/{case.dtype}/{case.n_elements}"):
            entry["skipped"].append([patterns.NAMES[case.dtype], "no time was left"])
            continue
        try:
            found = run_case(case, group, at)
        except Exception as error:
            if _lacks(error):  # on all ranks alike
                entry["skipped"].append([patterns.NAMES[case.dtype], brief(error)])
                continue
            entry["error"] = {**case.named, "kind": kind_of(error), "text": brief(error)}
            raise
        entry["n_cases"] += 1
        if patterns.NAMES[case.dtype] not in entry["dtypes"]:
            entry["dtypes"].append(patterns.NAMES[case.dtype])
        if found is not None:
            entry["n_wrong"] += 1
            if len(entry["wrong"]) < _SHOWN:
                entry["wrong"].append(found)


def again(group: Group, at: Callable[[str], None], op: str) -> dict[str, Any]:
    """Repeat a collective that was wrong somewhere some more times, on all ranks, to see whether it recurs."""
    case = Case(op=op, dtype=torch.float32, n_elements=1031)
    wrong = [run_case(case, group, at) is not None for _ in range(_REPEATS_WHEN_WRONG)]
    return {**case.named, "n_repeats": len(wrong), "n_wrong": sum(wrong)}


def in_small_groups(
    rank: int, n_ranks: int, group: Group, op: str, at: Callable[[str], None], make: Callable[[list[int]], Any]
) -> list[dict[str, Any]]:
    """Repeat it in overlapping groups of neighbours, to see who is wrong in all of its groups."""
    found: list[dict[str, Any]] = []
    for members in overlapping(n_ranks):
        process_group = make(members)  # every rank of the job has to make it
        if rank not in members:
            continue
        small = Group(
            rank=members.index(rank), size=len(members), device=group.device, op_timeout_s=group.op_timeout_s,
            process_group=process_group,
        )  # fmt: skip
        case = Case(op=op, dtype=torch.float32, n_elements=1031)
        found.append({"op": op, "ranks": members, "wrong": run_case(case, small, at) is not None})
    return found


def overlapping(n_ranks: int) -> list[list[int]]:
    """Return groups of neighbours, each rank in two: pairs, or larger groups so that there are at most 64."""
    if n_ranks < 3:
        return []
    half = max(1, -(-n_ranks // 64))
    starts = range(0, n_ranks, half)
    groups = [[r % n_ranks for r in range(start, start + 2 * half)] for start in starts]
    return [sorted(set(members)) for members in groups if len(set(members)) > 1]


def _lacks(error: BaseException) -> bool:
    text = str(error).lower()
    is_told = any(word in text for word in ("not supported", "unsupported", "invalid scalar type", "not implemented"))
    return is_told or isinstance(error, (TypeError, NotImplementedError))
