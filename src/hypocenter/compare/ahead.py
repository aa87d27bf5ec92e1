"""Take from an iterator in a thread of its own: Arrow decodes the next batches while one is looked at."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from queue import Queue
from typing import TypeVar

T = TypeVar("T")
_AHEAD = 2  # batches that wait


def ahead(items: Iterable[T]) -> Iterator[T]:
    """The items in their order; what they raise is raised here. The thread ends when nobody takes any more."""
    waiting: Queue[tuple[T | None, BaseException | None, bool]] = Queue(_AHEAD)
    is_over = threading.Event()

    def take() -> None:
        try:
            for item in items:
                waiting.put((item, None, False))
                if is_over.is_set():
                    return
            waiting.put((None, None, True))
        except BaseException as error:
            waiting.put((None, error, True))

    thread = threading.Thread(target=take, name="hypocenter-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error, is_last = waiting.get()
            if error is not None:
                raise error
            if is_last:
                return
            yield item  # pyright: ignore[reportReturnType]
    finally:
        is_over.set()
        while thread.is_alive():  # it may wait for room
            while not waiting.empty():
                waiting.get_nowait()
            thread.join(0.01)
