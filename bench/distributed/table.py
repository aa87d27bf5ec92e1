"""The measured costs as the Markdown page docs/overhead-distributed.md."""

from __future__ import annotations

from collections.abc import Sequence

from bench.distributed.job import N_TIMED, N_WARM_UP
from bench.distributed.jobs import Cost
from bench.distributed.sizes import Size
from bench.overhead.measured import machine

LIMIT = 1.03  # of CPU time, of LIMIT_RANKS ranks
LIMIT_RANKS = 4

_INTRODUCTION = """# Overhead in a job of several ranks

Written by `python -m bench.distributed --write`; do not edit.

A GPT under DistributedDataParallel on gloo, trained by several ranks at level sentinel as it comes: local gradients
before they are reduced, the ranks' agreement at each step, digests of all replicas every 10 steps. Blocks of steps with
Hypocenter and without it take turns in one job, all ranks in step, the one that goes first changing each time. The
ratio is of the CPU time of all ranks and threads together; shown is the median of the paired ratios and, in brackets,
the smallest, the largest and how many there are. The clock's ratio is that of the slowest rank. All ranks share the
cores of one machine, so by the clock everything takes longer the more of them there are: what is to stay the same is
the CPU time that recording adds to a rank's step.
"""


def page(costs: Sequence[Cost], size: Size) -> str:
    """Render one row per number of ranks."""
    rows = [["ranks", "limit", "CPU time, × plain", "clock, × plain", "plain step, clock", "CPU of a rank's step",
             "added to it", "in Hypocenter, clock", "of the step"]]  # fmt: skip
    for cost in costs:
        limit = f"{LIMIT:.2f}" if cost.world_size == LIMIT_RANKS else ""
        if cost.failure:
            rows.append([str(cost.world_size), limit, f"failed: `{cost.failure[:80]}`", *[""] * 6])
            continue
        verdict = " **over the limit**" if is_over(cost) else ""
        rows.append([
            str(cost.world_size), limit, _ratios(cost.cpu_ratios, cost.median) + verdict,
            _ratios(cost.wall_ratios, sorted(cost.wall_ratios)[len(cost.wall_ratios) // 2]),
            f"{cost.plain_ms:.0f} ms", f"{cost.rank_cpu_ms:.0f} ms",
            f"{cost.extra_cpu_ms:.2f} ms", f"{cost.tap_ms:.2f} ms", f"{cost.tap_share:.2%}",
        ])  # fmt: skip
    return "\n".join([_INTRODUCTION, _facts(costs, size), "", *_markdown(rows), ""])


def is_over(cost: Cost) -> bool:
    """Whether a limit applies, and is exceeded or could not be measured."""
    return cost.world_size == LIMIT_RANKS and bool(cost.failure or cost.median > LIMIT)


def _ratios(ratios: Sequence[float], median: float) -> str:
    return f"{median:.3f} ({min(ratios):.2f}–{max(ratios):.2f}, {len(ratios)})"


def _facts(costs: Sequence[Cost], size: Size) -> str:
    days = sorted({cost.measured for cost in costs if cost.measured})
    n_parameters = max((cost.n_parameters for cost in costs), default=0)
    return (
        f"Measured {' to '.join(dict.fromkeys((days[0], days[-1]))) if days else 'never'} on {machine()}.\n"
        f"A pair is two blocks of {N_TIMED} steps, {N_WARM_UP} untimed steps before each where the side changes. "
        f"{n_parameters / 1e6:.1f} M parameters,\nbatches of {size.n_rows} × {size.n_tokens} tokens a rank, float32. "
        "Time in Hypocenter is its own account (`tap_ms`), the median over timed steps and ranks;\n"
        "its share of the step is of the sums, so that the steps that digest are in it."
    )


def _markdown(rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]
