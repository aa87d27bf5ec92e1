"""The parts of a session of MindSpore training, each switched off by itself when it fails."""

from __future__ import annotations

from typing import Any

from hypocenter.session.mindspore.calibration import Calibration
from hypocenter.session.mindspore.failures import Failures
from hypocenter.session.mindspore.graph import Graphs
from hypocenter.session.mindspore.imposed.in_training import InTraining
from hypocenter.session.mindspore.kept_batches import KeptBatches
from hypocenter.session.mindspore.levels import Levels
from hypocenter.session.mindspore.seams import Context, Seams
from hypocenter.session.mindspore.unreplayed import Unreplayed


def assemble(context: Context) -> Seams:
    """Make them all."""
    return Seams(
        warn=context.warn,
        levels=Levels(context),
        imposing=InTraining(context),
        investigator=Failures(context),
        graphs=Graphs(context),
        instead_of_replays=Unreplayed,
        others=_others(context),
    )


def _others(context: Context) -> list[Any]:
    return [KeptBatches(context), *([Calibration(context)] if context.config.calibrate != "never" else [])]
