"""How the ranks find together: who is here, who leads, and what they tell each other through the job's store.

The store needs no group: a rank that never comes is seen to be missing although no group can be made. Keys lie below
`hypocenter-doctor/<key>/`. Rank 0 calls the roll; when it has not come, the rank that came first does.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hypocenter.examine.request import Request

POLL_S = 0.02
RETRY_S = 0.25


class NoStore(Exception):
    """The store that the ranks meet at cannot be reached."""


class Meeting:
    """A connection to the store where the ranks meet, with our keys."""

    def __init__(self, request: Request, within_s: float) -> None:
        self._request = request
        self._store = _connected(request, within_s)
        self._prefix = f"hypocenter-doctor/{request.key}"

    def again(self, within_s: float) -> Meeting:
        """Return another connection, for another thread."""
        other = object.__new__(Meeting)
        other._request, other._prefix = self._request, self._prefix
        other._store = dist.TCPStore(
            self._request.store_host, self._request.store_port, is_master=False, wait_for_workers=False,
            timeout=timedelta(seconds=max(1.0, within_s)),
        )  # fmt: skip
        return other

    def group_store(self) -> Any:
        """Return a store for a process group, with its keys below ours."""
        return dist.PrefixStore(f"{self._prefix}/group", self._store)

    def put(self, name: str, value: Any) -> None:
        """Publish a value under a name."""
        self._store.set(f"{self._prefix}/{name}", json.dumps(value))

    def has(self, name: str) -> bool:
        """Return whether some rank has published this name."""
        return bool(self._store.check([f"{self._prefix}/{name}"]))

    def get(self, name: str) -> Any:
        """Return the value of a name; None when nobody has published it."""
        return json.loads(self._store.get(f"{self._prefix}/{name}")) if self.has(name) else None

    def claim(self, name: str, value: Any) -> Any:
        """Publish a value unless another rank has; return the value that counts now."""
        return json.loads(self._store.compare_set(f"{self._prefix}/{name}", "", json.dumps(value)))

    def count(self, name: str, by: int = 1) -> int:
        """Add to a number that all ranks see, and return it; 0 only reads it."""
        return int(self._store.add(f"{self._prefix}/{name}", by))

    def wait(self, name: str, deadline: float) -> Any:
        """Return the value of a name once it is published; None when nobody does so before `deadline`."""
        return self.until(lambda: self.get(name), deadline)

    @staticmethod
    def until(look: Callable[[], Any], deadline: float) -> Any:
        """Look again and again until `deadline`; return the first answer that is not None."""
        while True:
            answer = look()
            if answer is not None or time.monotonic() >= deadline:
                return answer
            time.sleep(POLL_S)

    def vote(self, name: str, mine: int, n_ranks: int, deadline: float) -> int | None:
        """Return the sum of what all ranks say; None when not all have spoken by `deadline`."""
        self.count(f"{name}/sum", mine)
        self.count(f"{name}/votes")
        all_in = self.until(lambda: True if self.count(f"{name}/votes", 0) >= n_ranks else None, deadline)
        return self.count(f"{name}/sum", 0) if all_in else None


def call_roll(
    meeting: Meeting, request: Request, facts: dict[str, Any], deadline: float, last: float
) -> dict[str, Any] | None:
    """Say that this rank is here, and learn who else is: {"ranks": [...], "facts": {rank: facts}}.

    The rank that calls the roll does so when all are here, or at `deadline`: then with those that are. None: nobody has
    called it by `last`.
    """
    meeting.put(f"here/{request.rank}", facts)
    came_as = meeting.count("arrived")
    if request.rank == 0 or came_as == 1:
        everybody = meeting.until(lambda: True if meeting.count("arrived", 0) >= request.n_ranks else None, deadline)
        if request.rank == 0 or (not everybody and not meeting.has("here/0")):
            here = {r: meeting.get(f"here/{r}") for r in range(request.n_ranks)}
            came = {rank: known for rank, known in here.items() if known is not None}
            return meeting.claim("roster", {"ranks": sorted(came), "facts": {str(r): f for r, f in came.items()}})
    return meeting.wait("roster", last)


def _connected(request: Request, within_s: float) -> Any:
    if not request.hosts_store:
        _await_port(request.store_host, request.store_port, time.monotonic() + within_s)
    timeout = timedelta(seconds=max(1.0, within_s))
    try:
        if request.hosts_store and request.store_fd >= 0:
            return dist.TCPStore(
                request.store_host, request.store_port, is_master=True, wait_for_workers=False, timeout=timeout,
                master_listen_fd=request.store_fd,
            )  # fmt: skip
        return dist.TCPStore(
            request.store_host, request.store_port, is_master=request.hosts_store, wait_for_workers=False,
            timeout=timeout,
        )  # fmt: skip
    except (RuntimeError, ValueError, OSError) as error:  # DistNetworkError, DistStoreError are RuntimeErrors
        raise NoStore(str(error).strip().split("\n")[0]) from error


def _await_port(host: str, port: int, deadline: float) -> None:
    """Try until somebody listens there: torch's own attempts can last longer than they were given.

    Raises:
        NoStore: nobody does by `deadline`.
    """
    while True:
        left_s = deadline - time.monotonic()
        try:
            with socket.create_connection((host, port), timeout=min(3.0, max(0.1, left_s))):
                return
        except OSError as error:
            if time.monotonic() + RETRY_S >= deadline:
                raise NoStore(error.strerror or str(error)) from error
            time.sleep(RETRY_S)
