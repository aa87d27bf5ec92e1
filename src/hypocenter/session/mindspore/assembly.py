"""The parts of a session of MindSpore training, each switched off by itself when it fails."""

from __future__ import annotations

from typing import Any

from hypocenter.config import Config
from hypocenter.session.events import Observer
from hypocenter.session.mindspore.accumulated import Accumulated
from hypocenter.session.mindspore.alike_units import AlikeUnits
from hypocenter.session.mindspore.audit import Audit
from hypocenter.session.mindspore.batches import Batches
from hypocenter.session.mindspore.beside_loss import BesideLoss
from hypocenter.session.mindspore.by_rule import ByRule
from hypocenter.session.mindspore.calibration import Calibration
from hypocenter.session.mindspore.failures import Failures, Unreplayed
from hypocenter.session.mindspore.given import Given
from hypocenter.session.mindspore.graph import Graphs
from hypocenter.session.mindspore.imposed.in_training import InTraining
from hypocenter.session.mindspore.kept_batches import KeptBatches
from hypocenter.session.mindspore.levels import Levels
from hypocenter.session.mindspore.modes import Modes
from hypocenter.session.mindspore.pairs import Pairs
from hypocenter.session.mindspore.recompute import Recompute
from hypocenter.session.mindspore.relations import Relations
from hypocenter.session.mindspore.scaling import Scaling
from hypocenter.session.mindspore.seams import Context, Seams
from hypocenter.session.mindspore.unheld import Unheld
from hypocenter.session.observers.between import Between
from hypocenter.session.observers.culprit import Culprit
from hypocenter.session.observers.frozen_state import FrozenState
from hypocenter.session.observers.hyperparameters import Hyperparameters
from hypocenter.session.observers.schedules import Schedules
from hypocenter.session.observers.ties import Ties
from hypocenter.session.observers.updates import LostUpdates
from hypocenter.session.observers.use import Use


def assemble(context: Context) -> Seams:
    """Make all parts of a session."""
    return Seams(
        context,
        levels=Levels(context),
        imposing=InTraining(context),
        investigator=Failures(context),
        graphs=Graphs(context),
        instead_of_replays=Unreplayed,
        observers=_observers(context.config),
    )


def _observers(config: Config) -> list[type[Observer[Any]]]:
    return [
        Culprit,
        Batches,
        KeptBatches,
        Unheld,  # before anything makes forward run again
        Scaling,
        Schedules,
        LostUpdates,
        FrozenState,
        Hyperparameters,
        Accumulated,
        Recompute,
        Between,
        Audit,
        Use,
        ByRule,
        Modes,
        Ties,
        Given,
        Pairs,
        AlikeUnits,
        BesideLoss,
        Relations,
        *([Calibration] if config.calibrate != "never" else []),
    ]
