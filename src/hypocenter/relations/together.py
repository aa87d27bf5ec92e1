"""Relations of a model that computes on several ranks together: the first rank leads, the others do each forward, too.

The first rank changes its own inputs. Who is given the very same ones (tensor parallelism) is sent the change; the
others (data parallelism, experts, sharded parameters) do their own micro-batch again as it was. Rank by rank all make
the same collectives, over groups of our own, and after each forward they agree whether all came through. Where one did
not, its groups are closed, which tells those who wait for it, and the next forward has new ones.

A change that would send tensors of another size to ranks that do not make it is not tried: not every backend of
collectives survives that.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from hypocenter.relations.facts import gradients_of
from hypocenter.relations.subject import Change, Given, Place, Ran, Subject, Way, without_hooks
from hypocenter.replay.batch_rows import Rows
from hypocenter.replay.engine import Replayer
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.jointly import Table
from hypocenter.replay.own_groups import OwnGroups

MOST_FAILURES = 4  # forwards that a rank did not come through, in one look
_WORDS = 1 << 14  # bytes of what is told of one forward
LOST = "the other ranks did not answer"


class Channel:
    """What the first rank tells the others, and how all agree. To be used inside of `Replayer.together`.

    Args:
        table: the means to agree.
        replayer: of this rank.
        groups: over which it replays now.
    """

    def __init__(self, table: Table, replayer: Replayer, groups: OwnGroups) -> None:
        self._table, self._replayer, self._groups = table, replayer, groups
        self.n_failures = 0
        self.is_lost = False

    def tell(self, words: dict[str, Any], values: Sequence[Tensor] = (), root: int = 0) -> None:
        """Tell the other ranks something, and send them tensors. `root` is this rank."""
        described = [[str(each.dtype).removeprefix("torch."), [*each.shape]] for each in values]
        text = json.dumps({**words, "values": described}).encode()
        if len(text) > _WORDS:
            raise ReplayImpossible("a change of so many inputs is not told to other ranks")
        with self._listened():
            self._groups.from_rank(root, torch.frombuffer(bytearray(text.ljust(_WORDS)), dtype=torch.uint8))
            for each in values:
                self._send(root, each)

    def hear(self, root: int = 0) -> tuple[dict[str, Any], list[Tensor]]:
        """Return what one rank tells: words, and tensors on the host."""
        with self._listened():
            text = torch.empty(_WORDS, dtype=torch.uint8, device="cpu")
            self._groups.from_rank(root, text)
            words: dict[str, Any] = json.loads(text.numpy().tobytes())
            values = [torch.empty(shape, dtype=getattr(torch, kind), device="cpu") for kind, shape in words["values"]]
            for each in values:
                self._send(root, each)
        return words, values

    def _send(self, root: int, tensor: Tensor) -> None:
        if tensor.numel():
            self._groups.from_rank(root, bytes_of(tensor))

    @contextlib.contextmanager
    def _listened(self) -> Generator[None, None, None]:
        try:
            yield
        except RuntimeError as error:
            self.is_lost = True
            raise ReplayImpossible(LOST) from error

    def agree(self, *, came_through: bool) -> bool:
        """Return whether every rank came through the last forward; go on over new groups if not.

        Raises:
            ReplayImpossible: a rank did not answer.
        """
        if not came_through:
            self._groups.close()  # who waits for this rank is told
        if not self.is_true_for_any(not came_through):
            return True
        self._groups.close()
        if (groups := self._table.groups()) is None:
            self.is_lost = True
            raise ReplayImpossible(LOST)
        self.n_failures += 1
        self._groups = groups
        with self._listened():
            self._replayer.renew(groups)
        return False

    def is_true_for_any(self, own: bool) -> bool:
        """Return whether this holds on some rank.

        Raises:
            ReplayImpossible: a rank did not answer.
        """
        if (said := self._table.most([int(own)])) is None:
            self.is_lost = True
            raise ReplayImpossible(LOST)
        return bool(said[0])

    def close(self) -> None:
        """End it: who still waits for this rank is told."""
        self._groups.close()


class Leader:
    """See `hypocenter.relations.subject.Lead`.

    Args:
        channel: to the other ranks.
        subject: the micro-batch of this rank.
    """

    def __init__(self, channel: Channel, subject: Subject) -> None:
        self._channel, self._subject = channel, subject
        channel.tell({"given": digests_of(subject.given)})
        self._are_all_alike = not channel.is_true_for_any(False)

    @contextlib.contextmanager
    def forward(self, change: Change) -> Generator[None, None, None]:
        """Have the other ranks begin a forward, and agree after this one whether all came through."""
        if self._channel.is_lost or self._channel.n_failures >= MOST_FAILURES:
            raise ReplayImpossible("other ranks do not come through such forwards")
        self._channel.tell(*self._told(change))
        came_through = False
        try:
            yield
            came_through = True
        finally:
            all_came = self._channel.agree(came_through=came_through)
        if not all_came:
            raise ReplayImpossible("another rank did not come through this forward")

    def _told(self, change: Change) -> tuple[dict[str, Any], list[Tensor]]:
        at = {each.place: number for number, each in enumerate(self._subject.given)}
        changed = [(place, at.get(place), value) for place, value in change.changed.items()]
        if any(number is None for _, number, _ in changed):
            raise ReplayImpossible("other ranks are not given one argument more")
        numbers = [number for _, number, _ in changed if number is not None]
        is_as_large = all(
            self._subject.given[n].tensor.shape == value.shape for n, (*_, value) in zip(numbers, changed, strict=True)
        )
        if not self._are_all_alike and (change.rows is not None or not is_as_large):
            raise ReplayImpossible("other ranks would get tensors of another size")
        words: dict[str, Any] = {
            "changed": numbers, "seed": change.way.seed, "is_evaluated": change.way.is_evaluated,
            "is_embedded": change.is_embedded, "is_taken": change.taken is not None,
            "goes_back": change.goes_back,
        }  # fmt: skip
        values = [value for *_, value in changed]
        if change.taken is not None:
            values.append(change.taken)
        if change.rows is not None:
            words["rows"] = change.rows.n, change.rows.is_flat
            values.append(change.rows.kept)
        return words, values

    def end(self, *, may_exchange: bool) -> None:
        """Tell the others that this was all, and whether micro-batches may be exchanged now."""
        if not self._channel.is_lost:
            self._channel.tell({"is_over": True, "may_exchange": may_exchange})


def follow(channel: Channel, subject: Subject) -> bool:
    """Do each forward that the first rank tells of, until it says that it was the last.

    Returns:
        Whether micro-batches may be exchanged now.

    Raises:
        ReplayImpossible: it does not answer any more.
    """
    subject.limit_s = math.inf  # the first rank knows for how many there is time
    words, _ = channel.hear()
    is_alike = words["given"] == digests_of(subject.given)
    channel.is_true_for_any(not is_alike)
    while True:
        words, values = channel.hear()
        if words.get("is_over"):
            return bool(words["may_exchange"])
        came_through = False
        with contextlib.suppress(Exception):  # of the user's own code: all ranks are told
            _run(subject, words, values, is_alike=is_alike)
            came_through = True
        channel.agree(came_through=came_through)


def _run(subject: Subject, words: dict[str, Any], values: list[Tensor], *, is_alike: bool) -> None:
    way = Way(seed=words["seed"], is_evaluated=words["is_evaluated"])
    numbers: list[int] = words["changed"]
    rest, rows = values[len(numbers) :], None
    changed: dict[Place, Tensor] = {}
    if is_alike:
        own = [subject.given[number] for number in numbers]
        changed = {each.place: new.to(each.tensor.device) for each, new in zip(own, values, strict=False)}
        if "rows" in words:
            n, is_flat = words["rows"]
            rows = Rows(n=n, kept=rest[-1], is_flat=is_flat)
    elif words["is_taken"]:
        taken = rest[0]
        changed = {
            each.place: each.tensor.index_select(0, taken.to(each.tensor.device))
            for each in subject.of_model if each.tensor.shape[:1] == taken.shape
        }  # fmt: skip
    then = _go_back if words["goes_back"] else None
    subject.run(changed, way=way, rows=rows, is_embedded=words["is_embedded"] and is_alike, then=then)


def _go_back(ran: Ran) -> None:
    """Do the backward that the first rank does: the loss may have gathered what all ranks have."""
    without_hooks(ran)
    gradients_of(ran)


def digests_of(given: Sequence[Given]) -> list[str]:
    """Return a digest of each input: where it is given, its format, shape and values."""
    return [
        hashlib.sha1(
            repr((each.place, str(each.tensor.dtype), tuple(each.tensor.shape))).encode()
            + bytes_of(each.tensor).numpy().tobytes(),
            usedforsecurity=False,
        ).hexdigest()[:16]
        for each in given
    ]  # fmt: skip


def bytes_of(tensor: Tensor) -> Tensor:
    """Return its values as bytes on the host; of one that lies there in one piece, the same memory."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
