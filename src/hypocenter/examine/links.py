"""Plain sockets between the ranks: which two hosts cannot reach each other, before any library tries.

Each rank listens on the address by which it reaches the store, or on that of the interface it was told to use.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

ALL_PAIRS = 64  # ranks: 2016 pairs, 63 connections a rank
_CONNECT_S = 3.0
_AT_ONCE = 8
_GREETING = struct.Struct("!4sII")  # "hypo", from, to


def peers(rank: int, n_ranks: int) -> list[int]:
    """The ranks that `rank` talks with: all up to 64 ranks, else those at the distances 1, 2, 4, ... on both sides."""
    if n_ranks <= ALL_PAIRS:
        return [r for r in range(n_ranks) if r != rank]
    steps = [1 << k for k in range(n_ranks.bit_length()) if 1 << k < n_ranks]
    return sorted({(rank + step) % n_ranks for step in steps} | {(rank - step) % n_ranks for step in steps} - {rank})


def own_address(store_host: str, store_port: int, environ: Mapping[str, str] = os.environ) -> str:
    """The address of this host on the network that the ranks use."""
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
    """The own address on the way there. Nothing is sent: a connected UDP socket only picks the route."""
    with contextlib.suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    return ""


def name_resolves_to() -> str:
    """What this host's own name means to itself: gloo listens there when no interface is given."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None)[0][4][0])
    except OSError as error:
        return f"error: {error}"


class Listener:
    """Answers those that connect, until it is closed."""

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
    """Connect to each peer: {rank: {"ms": ...} or {"error": ...}}."""
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
    """IPv4 address of an interface whose name begins with that, as NCCL takes it; empty when there is none."""
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
