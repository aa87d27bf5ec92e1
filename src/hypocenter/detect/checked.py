"""What each rank's check of a micro-batch came to, read from the rows at site `sdc`: what verdicts are made of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypocenter import repetition
from hypocenter.detect.panel import Panel
from hypocenter.nouns import Reading, Source

NOISE = 10.0  # times what two replays differ by: less than that between run and replay is noise too
LEAST = 1e-6  # relative difference of norms that is looked at where two replays differ: about 16 ulps of float32
ROUNDING = 1e-4  # largest relative difference of norms that other summation orders make in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongOp:
    """An op that does not agree with float64."""

    op: str
    site: str
    module: str
    phase: str
    source: Source | None
    index: str
    n_wrong: str
    got: float | None = None
    float64: float | None = None
    bound: float | None = None


@dataclass(slots=True, kw_only=True)
class Checked:
    """What one rank's check of one micro-batch, done again, came to."""

    rank: int
    step: int
    microbatch: int
    why: str = ""
    run: int | None = None  # digests
    again: int | None = None
    second: int | None = None
    differ: tuple[str, ...] = ()  # parameters (and `loss`) with other bits than in the run
    n_replays: int = 1  # on its own device
    n_compared: int = 0
    n_equal: int = 0
    largest: float = 0.0  # relative difference of norms
    noise: float = 0.0
    n_ops: int = 0
    n_wrong: int = 0
    wrong: list[WrongOp] = field(default_factory=list)
    state: tuple[str, ...] = ()
    n_bad_inputs: int = 0
    neighbour: int = -1  # rank; -1: nobody did it again
    is_alike: bool = True
    theirs: int | None = None  # digest
    theirs_differ: tuple[str, ...] = ()
    theirs_largest: float = 0.0
    theirs_replays: int = 1
    theirs_noise: float = 0.0
    theirs_wrong: int = 0
    theirs_ops: int = 0
    parting: Reading | None = None
    moved: tuple[float, float] = (0.0, 0.0)  # elements that moved rows changed: here, there
    notes: tuple[str, ...] = ()

    @property
    def is_noisy(self) -> bool:
        """Whether replays differ among themselves."""
        return self.noise > 0.0 or (self.second is not None and self.second != self.again)

    @property
    def is_measured(self) -> bool:
        """Whether it was replayed often enough to know by how much replays differ."""
        return self.n_replays >= repetition.LEAST

    @property
    def run_differs(self) -> bool:
        """Whether the run computed something else than the replays, beyond what these differ by."""
        if not self.differ or self.again is None or not self.is_measured:
            return False
        return not self.is_noisy or self.largest > max(NOISE * self.noise, LEAST)

    @property
    def run_agrees(self) -> bool:
        """Whether gradients were compared, and every bit is equal."""
        return self.n_compared > 1 and not self.differ

    @property
    def neighbour_agrees(self) -> bool:
        """Whether a neighbour's device came to the same bits."""
        return self.theirs is not None and self.theirs == self.again

    @property
    def neighbour_differs(self) -> bool:
        """Whether a neighbour's device came to other bits each time; for another kind of device, beyond rounding."""
        if self.theirs is None or self.theirs == self.again or not self.theirs_differ:
            return False
        if not self.is_measured or self.theirs_replays < repetition.LEAST:
            return False
        noise = max(self.noise, self.theirs_noise)
        return (self.is_alike and not (self.is_noisy or noise)) or self.theirs_largest > max(ROUNDING, NOISE * noise)


def checks_in(panel: Panel) -> list[Checked]:
    """Return the checks of one step, by rank and micro-batch; they are read once for all rules that ask."""
    import pyarrow.compute as pc

    if checks_in in panel.asked:
        return panel.asked[checks_in]
    table = panel.table
    rows = table.filter(pc.equal(table["site"], "sdc")) if table.num_rows else table
    found: dict[tuple[int, int], Checked] = {}
    for rank, row in panel.readings(rows) if rows.num_rows else ():
        key = (rank, row.microbatch)
        _read(found.setdefault(key, Checked(rank=rank, step=panel.step, microbatch=row.microbatch)), row)
    panel.asked[checks_in] = [found[key] for key in sorted(found)]
    return panel.asked[checks_in]


def _read(check: Checked, row: Reading) -> None:
    port, names, size = row.port, row.names, row.summary
    if port == "run":
        check.why, check.run = (names or ("",))[0], row.digest
    elif port == "again[0]":
        check.again, check.differ = row.digest, names
        check.n_compared, check.n_equal = size.n, size.n_zero
        check.largest = _largest(row)
    elif port == "again[1]":
        check.second, check.noise = row.digest, _largest(row)
        check.n_replays = max(check.n_replays, 2)
    elif port == "replays":
        check.n_replays, check.noise = 1 + size.n, _largest(row)
    elif port == "ops":
        check.n_ops, check.n_wrong = size.n - size.n_nan, int(size.sum)
    elif port == "state":
        check.state = names
    elif port == "batch":
        check.n_bad_inputs = size.n
    elif port.startswith("neighbour"):
        _read_neighbour(check, row)
    elif port == "parting":
        check.parting = row
    elif port in ("parting.here", "parting.there"):
        here, there = check.moved
        check.moved = (size.sum, there) if port == "parting.here" else (here, size.sum)
    elif port.startswith("op["):
        _read_op(check, row)
    elif port == "impossible":
        check.notes = names


def _read_neighbour(check: Checked, row: Reading) -> None:
    if row.port == "neighbour.ops":
        check.theirs_ops, check.theirs_wrong = row.summary.n - row.summary.n_nan, int(row.summary.sum)
        return
    if row.port == "neighbour.replays":
        check.theirs_replays, check.theirs_noise = 1 + row.summary.n, _largest(row)
        return
    if row.port == "neighbour.impossible":
        return
    who, *differ = row.names or ("",)
    check.neighbour = int(who.removeprefix("rank ")) if who.removeprefix("rank ").isdigit() else -1
    check.theirs, check.theirs_differ, check.is_alike = row.digest, tuple(differ), row.port == "neighbour"
    check.theirs_largest = _largest(row)


def _read_op(check: Checked, row: Reading) -> None:
    value = _scalar(row)
    if row.port.endswith("]"):
        site, phase, index, n_wrong = (*row.names, "", "", "", "")[:4]
        check.wrong.append(
            WrongOp(
                op=row.op, site=site, module=row.module, phase=phase, source=row.source, index=index,
                n_wrong=n_wrong, got=value,
            )
        )  # fmt: skip
    elif check.wrong and row.port.endswith(".float64"):
        check.wrong[-1] = replace(check.wrong[-1], float64=value)
    elif check.wrong and row.port.endswith(".bound"):
        check.wrong[-1] = replace(check.wrong[-1], bound=value)


def _largest(row: Reading) -> float:
    return float("inf") if row.summary.n_posinf else row.summary.absmax


def _scalar(row: Reading) -> float | None:
    size = row.summary
    if size.n_nan:
        return float("nan")
    return float("inf") if size.n_posinf else float("-inf") if size.n_neginf else size.max
