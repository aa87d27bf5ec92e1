"""Ports for what tests start."""

from __future__ import annotations

import random
import socket

PORTS = range(20_000, 32_000)  # below those that Linux gives to whoever asks for any (ip_local_port_range: 32768...)


def free_port() -> int:
    """A port that nothing listens on. One that the kernel gives away might be taken before it is listened on."""
    chance = random.Random()  # of this process: the workers of a test run must not agree
    while True:
        port = chance.choice(PORTS)
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", port)):
                return port
