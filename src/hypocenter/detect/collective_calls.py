"""Rows of phase comm put together again: one collective, as all its ranks saw it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypocenter.detect.panel import Panel

_COLUMNS = (
    "rank", "op", "call", "names", "port", "dtype", "n", "n_nan", "n_posinf", "n_neginf", "sumsq", "absmax", "digest",
    "sketch", "site",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One tensor, or one rank's part of it, on its way in or out."""

    rank: int
    port: str
    dtype: str
    n: int
    n_bad: int  # elements that are not finite
    norm: float  # of the finite ones
    absmax: float
    digest: int | None
    sketch: tuple[float, ...]
    site: str


@dataclass(slots=True, kw_only=True)
class Collective:
    """One call on all ranks of its group."""

    op: str  # all_reduce
    reduce: str  # sum
    axis: str  # of the layout, or torch's name of the group
    ranks: tuple[int, ...]
    peer: int | None
    call: int
    values: dict[tuple[int, str], Value] = field(default_factory=dict)  # by (rank, port)

    @property
    def name(self) -> str:
        """The call in words: all_reduce.sum over dp (ranks 0, 1)."""
        shown = ", ".join(map(str, self.ranks[:8])) + (", ..." if len(self.ranks) > 8 else "")
        axis = f"{self.axis} " if self.axis.isalpha() else ""
        return f"{'.'.join(filter(None, (self.op, self.reduce)))} over {axis}(ranks {shown})"

    def every(self, port: str) -> list[Value] | None:
        """Return the values of one port on all ranks in order; None when one is missing or they do not fit together."""
        found = [self.values[r, port] for r in self.ranks if (r, port) in self.values]
        if len(found) < len(self.ranks) or len({(v.dtype, v.n) for v in found}) > 1:
            return None
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """Summands, and what ranks were given as their sum."""

    of: Collective
    summands: list[Value]
    results: list[Value]
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What was sent and what arrived."""

    of: Collective
    sent: Value
    arrived: Value


def collectives_of(panel: Panel) -> list[Collective]:
    """Return all collectives of a step, in no particular order. Rows of phase comm exist on few steps only."""
    table = panel.where(phase="comm")
    columns: dict[str, list[Any]] = {name: table[name].to_pylist() for name in _COLUMNS}
    found: dict[tuple[Any, ...], Collective] = {}
    for i in range(table.num_rows):
        if not columns["port"][i].startswith(("in[", "out[")):
            continue  # of something else that happens between ranks (agreement, a replayed neighbour)
        axis, ranks, group, peer = (*columns["names"][i], "", "", "", "")[:4]
        op, _, reduce = columns["op"][i].partition(".")
        rank, call = columns["rank"][i], columns["call"][i]
        members = tuple(int(r) for r in ranks.split(",") if r)
        other = int(peer) if peer else None
        key: tuple[Any, ...] = (op, reduce, ranks, group, other, call)
        if op in ("send", "recv"):
            ends = (rank, other) if op == "send" else (other, rank)
            key = ("send", *ends, ranks, group, call)
            op, other = "send", ends[1]
        entry = found.get(key)
        if entry is None:
            entry = found[key] = Collective(op=op, reduce=reduce, axis=axis, ranks=members, peer=other, call=call)
        entry.values[rank, columns["port"][i]] = Value(
            rank=rank, port=columns["port"][i], dtype=columns["dtype"][i], n=columns["n"][i],
            n_bad=columns["n_nan"][i] + columns["n_posinf"][i] + columns["n_neginf"][i],
            norm=columns["sumsq"][i] ** 0.5, absmax=columns["absmax"][i], digest=columns["digest"][i],
            sketch=tuple(columns["sketch"][i] or ()), site=columns["site"][i],
        )  # fmt: skip
    uneven = _uneven(found)
    return [entry for key, entry in found.items() if key[:5] not in uneven]


def _uneven(found: Mapping[tuple[Any, ...], Collective]) -> set[tuple[Any, ...]]:
    """Return pairs of ranks of which one was seen to send more often than the other to receive.

    Pipelines exchange shapes before their first micro-batch, where one end may not be watched yet.
    """
    sent: Counter[tuple[Any, ...]] = Counter()
    for key, entry in found.items():
        if entry.op == "send":
            sent[key[:5]] += any(port.startswith("in") for _, port in entry.values)
            sent[key[:5]] -= any(port.startswith("out") for _, port in entry.values)
    return {key for key, difference in sent.items() if difference}


def reductions(collective: Collective) -> Iterator[Reduction]:
    """Yield what was added up, where all ranks' parts are known."""
    if collective.reduce not in ("sum", "avg"):
        return
    ranks, factor = collective.ranks, 1.0 if collective.reduce == "sum" else 1.0 / max(1, len(collective.ranks))
    for port in sorted({port for _, port in collective.values if port.startswith("in")}):
        summands = collective.every(port)
        if summands is None:
            continue
        index = int(port[3:-1])
        if collective.op == "reduce_scatter":
            wanted = [(ranks[index], "out[0]")] if index < len(ranks) else []
        else:
            wanted = [(r, f"out[{index}]") for r in ranks]
        results = [collective.values[key] for key in wanted if key in collective.values]
        results = [v for v in results if (v.dtype, v.n) == (summands[0].dtype, summands[0].n)]
        if results:
            yield Reduction(of=collective, summands=summands, results=results, factor=factor)


def copies(collective: Collective) -> Iterator[Copy]:
    """Yield what was sent as it is, with what arrived."""
    ranks, values = collective.ranks, collective.values
    position = {rank: i for i, rank in enumerate(ranks)}
    for (rank, port), sent in list(values.items()):
        if not port.startswith("in"):
            continue
        index = port[3:-1]
        if collective.op in ("all_gather", "gather"):
            ends = [(r, f"out[{position.get(rank, -1)}]") for r in ranks] if index == "0" else []
        elif collective.op == "broadcast":
            ends = [(r, f"out[{index}]") for r in ranks]
        elif collective.op in ("all_to_all", "scatter"):
            back = position.get(rank, -1) if collective.op == "all_to_all" else 0
            ends = [(ranks[int(index)], f"out[{back}]")] if int(index) < len(ranks) else []
        elif collective.op == "send":
            ends = [(collective.peer, f"out[{index}]")]
        else:
            ends = []
        for end in ends:
            arrived = values.get(end)  # type: ignore[arg-type]
            if arrived is not None and (arrived.dtype, arrived.n) == (sent.dtype, sent.n):
                yield Copy(of=collective, sent=sent, arrived=arrived)
