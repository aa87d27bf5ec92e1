"""What is watched beside the check of every step: one file per concern, listed here."""

from __future__ import annotations

from hypocenter.session.observer import Context, Observer
from hypocenter.session.observers.diary import Diary

OBSERVERS: tuple[type[Observer], ...] = (Diary,)

__all__ = ["OBSERVERS", "Context", "Observer"]
