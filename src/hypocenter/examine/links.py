"""Plain sockets between the ranks: which two hosts cannot reach each other, before any library tries.

Each rank listens on the address by which it reaches the store, or on that of the interface it was told to use.

Each two ranks send each other something, both ways at once: one bad link is seen by itself.

Rounds of disjoint pairs, as in a tournament (the circle method), so that all ranks are busy and none waits long.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

from hypocenter.examine import patterns
from hypocenter.examine.collectives import Group, done
from hypocenter.examine.device import brief, kind_of

ALL_PAIRS = 64  # ranks: 2016 pairs, 63 connections a rank
_CONNECT_S = 3.0
_AT_ONCE = 8
_GREETING = struct.Struct("!4sII")  # "hypo", from, to
_REPEATS = 3  # of which the quickest counts
_BYTES_ON_CPU, _BYTES_ON_DEVICE = 1 << 20, 1 << 24


def peers(rank: int, n_ranks: int) -> list[int]:
    """Return the ranks that `rank` talks with: all up to 64 ranks, else those 1, 2, 4, ... away on both sides."""
    if n_ranks <= ALL_PAIRS:
        return [r for r in range(n_ranks) if r != rank]
    steps = [1 << k for k in range(n_ranks.bit_length()) if 1 << k < n_ranks]
    return sorted({(rank + step) % n_ranks for step in steps} | {(rank - step) % n_ranks for step in steps} - {rank})


def own_address(store_host: str, store_port: int, environ: Mapping[str, str] = os.environ) -> str:
    """Return the address of this host on the network that the ranks use."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"):
        wanted = environ.get(name, "").lstrip("=").split(",")[0].split(":")[0]
        if wanted and not wanted.startswith("^"):
            found = _address_of(wanted)
            if found:
                return found
    found = _route_to(store_host, store_port)
    is_local = store_host in ("localhost", "127.0.0.1", "::1")
    if found.startswith("127.") and not is_local:  # a host that has its own name in /etc/hosts
        found = _route_to("192.0.2.1", 9) or found  # TEST-NET-1, RFC 5737: the way out, where there is one
    return found or "127.0.0.1"


def _route_to(host: str, port: int) -> str:
    """Return our address on the way there; nothing is sent, a connected UDP socket only picks the route."""
    with contextlib.suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    return ""


def name_resolves_to() -> str:
    """Return the address of this host's own name: gloo listens there when no interface is given."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None)[0][4][0])
    except OSError as error:
        return f"error: {error}"


class Listener:
    """A socket that answers those who connect, until it is closed."""

    def __init__(self, rank: int, address: str) -> None:
        self._rank = rank
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.bind((address, 0))
        self._socket.listen(256)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True, name="hypocenter-links").start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            with caller, contextlib.suppress(OSError):
                caller.settimeout(_CONNECT_S)
                caller.sendall(_GREETING.pack(b"hypo", self._rank, _GREETING.unpack(_read(caller))[1]))


def call(rank: int, facts: Mapping[int, Mapping[str, Any]], deadline: float) -> dict[str, dict[str, Any]]:
    """Connect to each peer and return the times: {rank: {"ms": ...} or {"error": ...}}."""
    order = sorted(facts)
    mine = order.index(rank)
    theirs = [order[p] for p in peers(mine, len(order))]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(map(str, theirs), pool.map(lambda r: _try(rank, r, facts[r], deadline), theirs), strict=True))


def _try(rank: int, other: int, facts: Mapping[str, Any], deadline: float) -> dict[str, Any]:
    left_s = min(_CONNECT_S, deadline - time.monotonic())
    if left_s <= 0 or not facts.get("port"):
        return {"skipped": "no time was left" if left_s <= 0 else "it does not listen"}
    started = time.perf_counter()
    try:
        with socket.create_connection((facts["address"], facts["port"]), timeout=left_s) as line:
            line.settimeout(left_s)
            line.sendall(_GREETING.pack(b"hypo", rank, other))
            word, answered, _ = _GREETING.unpack(_read(line))
    except OSError as error:
        return {"error": error.strerror or str(error) or type(error).__name__, "where": facts["address"]}
    if word != b"hypo" or answered != other:
        return {"error": f"somebody else answers at {facts['address']}", "where": facts["address"]}
    return {"ms": (time.perf_counter() - started) * 1000.0}


def _read(line: socket.socket) -> bytes:
    data = b""
    while len(data) < _GREETING.size:
        more = line.recv(_GREETING.size - len(data))
        if not more:
            raise ConnectionError("the connection was closed at once")
        data += more
    return data


def _address_of(interface: str) -> str:
    """Return the IPv4 address of an interface whose name begins so, as NCCL takes it; empty without one."""
    try:
        import fcntl

        names = [name for _, name in socket.if_nameindex() if name.startswith(interface)]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            for name in names:
                with contextlib.suppress(OSError):
                    request = struct.pack("256s", name.encode()[:15])
                    siocgifaddr = 0x8915  # linux/sockios.h
                    return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), siocgifaddr, request)[20:24])
    except (ImportError, OSError):
        pass
    return ""


def rounds(rank: int, n_ranks: int) -> Iterator[int]:
    """Yield the partner of `rank` in each round (rounds without one are left out), in one order for all ranks."""
    if n_ranks <= ALL_PAIRS:
        places = n_ranks + n_ranks % 2
        for turn in range(places - 1):
            if rank == places - 1:
                partner = (turn * places // 2) % (places - 1)
            else:
                partner = (turn - rank) % (places - 1)
                partner = places - 1 if partner == rank else partner
            if partner < n_ranks:
                yield partner
        return
    for bit in range((n_ranks - 1).bit_length()):
        partner = rank ^ (1 << bit)
        if partner < n_ranks:
            yield partner


def examine(
    group: Group, ranks: list[int], at: Callable[[str], None], out: dict[str, Any], go: Callable[[str], bool]
) -> None:
    """Exchange data with each partner: {rank: {"n_wrong", "gib_s"} or {"error", "text"}}. A second call adds.

    Raises:
        Stuck, RuntimeError: the first that fails. A backend that has failed once fails the others too, which is no
            evidence against them.
    """
    for partner in rounds(group.rank, group.size):
        is_second = str(ranks[partner]) in out
        if not go(f"pair/{min(partner, group.rank)}-{max(partner, group.rank)}/{is_second}"):
            out.setdefault(str(ranks[partner]), {"skipped": "no time was left"})
            continue
        at(f"exchanging with rank {ranks[partner]}")
        try:
            found = _exchange(group, partner)
            before = out.get(str(ranks[partner]), {})
            found["n_wrong"] = max(found["n_wrong"], before.get("n_wrong", 0))
            found["gib_s"] = max(found["gib_s"], before.get("gib_s", 0.0))
            out[str(ranks[partner])] = found
        except Exception as error:
            out[str(ranks[partner])] = {"error": kind_of(error), "text": brief(error)}
            raise


def _exchange(group: Group, partner: int) -> dict[str, Any]:
    n_bytes = _BYTES_ON_CPU if group.device.is_cpu else _BYTES_ON_DEVICE
    mine = _letter(group.rank, partner, group, n_bytes)
    received = torch.empty_like(mine)
    fastest_s = float("inf")
    for _ in range(_REPEATS):
        started = time.perf_counter()
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, partner), dist.P2POp(dist.irecv, received, partner)]
        )
        for work in works:
            done(work, group)
        fastest_s = min(fastest_s, time.perf_counter() - started)
    right = _letter(partner, group.rank, group, n_bytes)
    return {"n_wrong": int((received != right).sum()), "n": right.numel(), "gib_s": n_bytes / 2**30 / fastest_s}


def _letter(sender: int, receiver: int, group: Group, n_bytes: int) -> torch.Tensor:
    numbers = patterns.contribution(sender, group.size, n_bytes // 8, torch.int64, salt=receiver + 1)
    return numbers.to(group.device.torch)
