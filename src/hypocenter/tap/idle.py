"""Whether devices have done what they were asked for, found out without waiting for them longer than one wants to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

PAUSE_S = 0.01  # between two questions


def are_idle(devices: Iterable[torch.device], within_s: float, now: Callable[[], float] = time.monotonic) -> bool:
    """Return whether what was queued on these devices is done, or will be in time. The host always is.

    Raises:
        RuntimeError: a device gives no more results.
    """
    until = now() + within_s
    asked = [event for device in devices if device.type not in ("cpu", "meta") for event in _recorded(device)]
    while asked:
        asked = [event for event in asked if not event.query()]
        if asked and now() >= until:
            return False
        if asked:
            time.sleep(PAUSE_S)
    return True


def _recorded(device: torch.device) -> list[Any]:
    """Record an event behind all that is queued on a device's stream; none where the device has no events."""
    backend: Any = getattr(torch, device.type, None)
    make = getattr(backend, "Event", None)
    if make is None:
        return []
    event = make()
    stream = getattr(backend, "current_stream", None)
    event.record(stream(device)) if stream is not None else event.record()
    return [event]
