"""A ring of ranks that hold the same parameters: each does its left neighbour's micro-batch, and tells it what came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hypocenter.repetition import LEAST
from hypocenter.replay.engine import Replayer, ReplayImpossible
from hypocenter.replay.triage import log, wire_format
from hypocenter.replay.triage.again import Again, Examined
from hypocenter.replay.triage.bits import Bits, Print, difference
from hypocenter.replay.triage.lent_microbatch import alike, borrowed, parcel
from hypocenter.replay.triage.wire_format import Answer, Parcel
from hypocenter.tap.digest import digests, to_host
from hypocenter.tap.names import NameMap
from hypocenter.tap.op_context import OpPlace
from hypocenter.tap.tape import Microbatch, Tape


class Asking(Protocol):
    """What a ring needs of a council of the ranks (hypocenter.session.agreement)."""

    def meets_at(self, step: int) -> bool: ...
    def gather(self, value: int, timeout_s: float | None = None) -> list[int] | None: ...
    def exchange(self, tensor: torch.Tensor, *, to: int, frm: int, timeout_s: float | None = None) -> Any: ...


class Notes(Protocol):
    """Where results are written down (hypocenter.session.observers.sdc.Rows)."""

    def add(self, port: str, summary: Any = None, *, names: Sequence[str] = ()) -> None: ...
    def difference(self, port: str, found: Any, digest: int, *, by: str = "") -> None: ...
    def repeated(self, port: str, distances: Sequence[float]) -> None: ...
    def counted(self, port: str, n_checked: int, n_wrong: int) -> None: ...
    def parting(self, place: OpPlace | None, op: str, here: int, there: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """A micro-batch that was sent to the right, and the one that came from the left."""

    microbatch: Microbatch
    left: int  # global rank whose micro-batch we do
    right: int  # that does ours
    theirs: Parcel


class Ring:
    """Send micro-batches round. Every rank of the job has to call `send` and `compare` at the same step."""

    def __init__(
        self, tape: Tape, replayer: Replayer, names: NameMap, again: Again, council: Asking, timeout_s: float
    ) -> None:
        self._tape, self._replayer, self._names, self._again = tape, replayer, names, again
        self._council, self._timeout_s = council, timeout_s

    def send(self, step: int, microbatch: Microbatch, *, takes_part: bool = True) -> Trade | None:
        """Send our micro-batch to the right, get the left one's; return None when there is nobody to trade with.

        Args:
            step: the one under way, the same on all ranks.
            takes_part: False where the step has failed. The others are told: all ranks call this or none.
        """
        if not self._council.meets_at(step):
            return None
        ring = self._ring(takes_part)
        if ring is None:
            return None
        rank = torch.distributed.get_rank()
        at = ring.index(rank)
        left, right = ring[at - 1], ring[(at + 1) % len(ring)]
        got = self._council.exchange(wire_format.to_tensor(parcel(self._tape, microbatch)), to=right, frm=left)
        theirs = wire_format.from_tensor(got, Parcel)
        if got is None:
            return None
        return Trade(microbatch=microbatch, left=left, right=right, theirs=theirs or Parcel(why_not="it was damaged"))

    def compare(self, trade: Trade, own: Examined | None, notes: Notes) -> None:
        """Do the left one's micro-batch, and tell it; write down what the right one made of ours."""
        sent = wire_format.to_tensor(self._answer(trade))
        wait_s = self._timeout_s + LEAST * (own.seconds if own is not None else 0.0)  # it does the same work
        got = self._council.exchange(sent, to=trade.left, frm=trade.right, timeout_s=wait_s)
        answer = wire_format.from_tensor(got, Answer)
        by = f"rank {trade.right}"
        if answer is None or own is None or answer.why_not:
            why = answer.why_not if answer is not None and answer.why_not else "there was no answer"
            notes.add("neighbour.impossible", names=(by, why))
            return
        theirs = Bits(prints={n: Print(digest=d, norm=s) for n, (d, s) in answer.prints.items()})
        if theirs.digest != own.again.digest:
            self._again.measure(own, trade.microbatch)
        port = "neighbour" if answer.alike == alike() else "neighbour.unlike"
        notes.difference(port, difference(own.again, theirs), theirs.digest, by=by)
        notes.repeated("neighbour.replays", answer.distances)
        notes.counted("neighbour.ops", answer.n_checked, answer.n_wrong)
        check = own.check
        if check is None or port != "neighbour" or theirs.digest == own.again.digest:
            return
        at = log.parting(check.report.lines, answer.ops)
        if at is not None:
            here, there = log.n_moved_from(check.report.lines), log.n_moved_from(answer.ops)
            notes.parting(check.places.get(at), check.report.lines[at].op, here, there)

    def _answer(self, trade: Trade) -> Answer:
        try:
            replayer, microbatch = borrowed(
                trade.theirs, self._tape, trade.microbatch, self._replayer._paused, self._replayer.deadline
            )
            done = Examined(microbatch=microbatch.number, again=self._again.bits(microbatch, replayer))
            self._again.measure(done, microbatch, replayer)
            bits = done.again
            check = self._again.ops(microbatch, replayer, log=True)
        except ReplayImpossible as error:
            return Answer(alike=alike(), why_not=str(error))
        except Exception as error:  # the user's own code runs here
            return Answer(alike=alike(), why_not=f"it raised {type(error).__name__}: {str(error)[:160]}")
        return Answer(
            prints={name: (each.digest, each.norm) for name, each in bits.prints.items() if each.digest is not None},
            ops=tuple(check.report.lines),
            n_wrong=len(check.report.wrong),
            n_checked=check.report.n_checked,
            alike=alike(),
            distances=tuple(done.distances),
        )

    def _ring(self, takes_part: bool) -> list[int] | None:
        """Return the ranks with the same bits in all parameters and names, in rising order; None if there is no
        other."""
        told = self._council.gather(self._parameters() if takes_part else ABSENT)
        if told is None or not takes_part:
            return None
        rank = torch.distributed.get_rank()
        ring = [number for number, digest in enumerate(told) if digest == told[rank]]
        return ring if len(ring) > 1 else None

    def _parameters(self) -> int:
        named = self._names.parameters()
        total = 0
        for (name, _), digest in zip(named, to_host(digests([p for _, p in named])), strict=True):
            total = (total * 0x5851_F42D_4C95_7F2D + (digest or 0) + len(name)) & ((1 << 63) - 1)
        return total  # never negative


ABSENT = -1  # in place of the digest of the parameters
