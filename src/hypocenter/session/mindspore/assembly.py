"""The parts of a session of MindSpore training, each switched off by itself when it fails."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hypocenter.session.mindspore.calibration import Calibration
from hypocenter.session.mindspore.kept_batches import KeptBatches
from hypocenter.session.mindspore.seams import Context, Graphs, Imposing, Levels, Seams
from hypocenter.session.mindspore.unreplayed import Unreplayed

_PARTS: dict[str, tuple[str, str, type[Any]]] = {
    "levels": ("hypocenter.session.mindspore.levels", "Levels", Levels),
    "imposing": ("hypocenter.session.mindspore.imposed.in_training", "InTraining", Imposing),
    "graphs": ("hypocenter.session.mindspore.graph", "Graphs", Graphs),
    "investigator": ("hypocenter.session.mindspore.failures", "Failures", Unreplayed),
}
"""Part -> its module and class, and what stands in for it."""


def assemble(context: Context) -> Seams:
    """Make them all."""
    made = {name: _made(context, *told) for name, told in _PARTS.items()}
    return Seams(warn=context.warn, others=_others(context), **made)


def _made(context: Context, module: str, name: str, instead: Callable[[Context], Any]) -> Any:
    if find_spec(module) is None:
        return instead(context)
    return getattr(import_module(module), name)(context)


def _others(context: Context) -> list[Any]:
    return [KeptBatches(context), *([Calibration(context)] if context.config.calibrate != "never" else [])]
