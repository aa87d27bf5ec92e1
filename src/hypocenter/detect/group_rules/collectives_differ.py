"""Ranks are in different collectives at the same place of their group's order.

What it means
    The members of a process group must call the same collectives in the same order. Where one calls a broadcast while
    the others call an all-reduce, all hang, or worse, exchange bytes that mean something else. Usual reasons: a branch
    that only some ranks take (`if rank == 0:` around a collective, unequal numbers of batches, a parameter that has no
    gradient on some ranks).

How it is decided
    Each rank's whereabouts hold the last collective it entered and which one of its group that was. Two ranks inside
    the same one (same group, same number), or thrown out of it, must be in the same operation.

What to do
    Look at the two places in the program that the finding names.

When it is wrong
    Collectives that are not seen (made in C++, or inside torch.compile) are not counted; they are made by all ranks
    alike.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from hypocenter.detect.endings import Job
from hypocenter.detect.group_engine import end_rule
from hypocenter.detect.rank_words import group_text, ranks_text
from hypocenter.detect.waiting import is_waiting
from hypocenter.nouns import Finding, Source
from hypocenter.record.whereabouts import Whereabouts


@end_rule("HC323", "comm", severity="error")
def check(job: Job) -> Iterator[Finding]:
    """Compare the collectives that the members of each group are in."""
    there: dict[tuple[str, str, int], list[Whereabouts]] = defaultdict(list)
    for w in job.whereabouts.values():
        if w.call is not None and is_waiting(w) and w.call.members and w.call.op not in ("send", "recv"):
            there[w.call.group, w.call.members, w.call.seq].append(w)
    for (_, _, seq), members in there.items():
        ops = Counter(w.call.op for w in members if w.call is not None)
        if len(ops) < 2:
            continue
        usual = ops.most_common(1)[0][0]
        odd = next(w for w in members if w.call is not None and w.call.op != usual)
        file, _, line = odd.line.rpartition(":")
        yield Finding(
            code="HC323",
            kind="comm",
            severity="error",
            title=f"ranks are in different collectives: {' and '.join(sorted(ops))}",
            step=odd.step,
            microbatch=odd.microbatch,
            rank=odd.rank,
            phase="comm",
            site=odd.site or None,
            op=odd.call.op if odd.call is not None else None,
            source=Source(file=file, line=int(line)) if file and line.isdigit() else None,
            cause="collective-fault",
            why=tuple(_sentence(job, members, op, seq, odd.call.ranks if odd.call else ()) for op in sorted(ops)),
            confidence="proven",
        )


def _sentence(job: Job, members: list[Whereabouts], op: str, seq: int, group: tuple[int, ...]) -> str:
    inside = [w for w in members if w.call is not None and w.call.op == op]
    place = next((f" ({w.line})" for w in inside if w.line), "")
    of = group_text(group, job.places, job.world_size)
    return f"#{seq} of {of} is {op} on {ranks_text([w.rank for w in inside])}{place}"
