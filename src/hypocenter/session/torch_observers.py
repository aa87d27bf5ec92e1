"""What is watched beside the check of every step: one file per concern, listed here."""

from __future__ import annotations

from typing import Any

from hypocenter.session.events import Observer
from hypocenter.session.observers.accumulation import Accumulation
from hypocenter.session.observers.after_use import AfterUse
from hypocenter.session.observers.alike_units import AlikeUnits
from hypocenter.session.observers.arrivals import Arrivals
from hypocenter.session.observers.autocast import Autocast
from hypocenter.session.observers.averages import Averages
from hypocenter.session.observers.between import Between
from hypocenter.session.observers.calibration import Calibration
from hypocenter.session.observers.cancelled import Cancelled
from hypocenter.session.observers.carried import Carried
from hypocenter.session.observers.clip_calls import ClipCalls
from hypocenter.session.observers.clipping import Clipping
from hypocenter.session.observers.collectives import CollectiveValues
from hypocenter.session.observers.culprit import Culprit
from hypocenter.session.observers.data_set import DataSet
from hypocenter.session.observers.diary import Diary
from hypocenter.session.observers.divisor import Divisor
from hypocenter.session.observers.facts import FactsKeeper
from hypocenter.session.observers.fresh_state import FreshState
from hypocenter.session.observers.frozen_moves import FrozenMoves
from hypocenter.session.observers.frozen_state import FrozenState
from hypocenter.session.observers.frozen_statistics import FrozenStatistics
from hypocenter.session.observers.frozen_written import FrozenWritten
from hypocenter.session.observers.handed_over import HandedOver
from hypocenter.session.observers.head import HeadGap
from hypocenter.session.observers.health import Health
from hypocenter.session.observers.held_back import HeldBack
from hypocenter.session.observers.hung_twice import HungTwice
from hypocenter.session.observers.hyperparameters import Hyperparameters
from hypocenter.session.observers.joined import Joined
from hypocenter.session.observers.kept_batches import KeptBatches
from hypocenter.session.observers.loads import Loads
from hypocenter.session.observers.local_gradients import LocalGradients
from hypocenter.session.observers.loggers import Loggers
from hypocenter.session.observers.modes import Modes
from hypocenter.session.observers.moved_statistics import MovedStatistics
from hypocenter.session.observers.op_bits import OpBits
from hypocenter.session.observers.own_memory import OwnMemory
from hypocenter.session.observers.own_reference import OwnReference
from hypocenter.session.observers.piled import Piled
from hypocenter.session.observers.precision import Precision
from hypocenter.session.observers.recompute import Recompute
from hypocenter.session.observers.relations import Relations
from hypocenter.session.observers.replicas import Replicas
from hypocenter.session.observers.same_draws import SameDraws
from hypocenter.session.observers.scaling import Scaling
from hypocenter.session.observers.schedules import Schedules
from hypocenter.session.observers.sdc import SdcCheck
from hypocenter.session.observers.still_parameters import StillParameters
from hypocenter.session.observers.streams import Streams
from hypocenter.session.observers.teachers import Teachers
from hypocenter.session.observers.ties import Ties
from hypocenter.session.observers.token_weights import TokenWeights
from hypocenter.session.observers.trainer_means import TrainerMeans
from hypocenter.session.observers.two_hands import TwoHands
from hypocenter.session.observers.unmeasured import Unmeasured
from hypocenter.session.observers.unsaved import Unsaved
from hypocenter.session.observers.updates import LostUpdates
from hypocenter.session.observers.use import Use
from hypocenter.session.observers.working_copies import WorkingCopies
from hypocenter.session.torch_audit import Audit
from hypocenter.session.torch_by_rule import ByRule
from hypocenter.session.torch_given import Given
from hypocenter.session.torch_pairs import Pairs
from hypocenter.session.torch_unheld import Unheld

OBSERVERS: tuple[type[Observer[Any]], ...] = (
    OpBits,  # whether the program repeats itself
    *(Diary, Culprit, FactsKeeper, KeptBatches),
    Unheld,  # what is trained can be held: before anything makes forward run again
    *(LocalGradients, CollectiveValues),  # each rank's own part, before it is added to the others'
    *(Scaling, Schedules, Autocast, Loggers),  # mixed precision used in a way that breaks it
    *(LostUpdates, FrozenState, Averages, Accumulation, Hyperparameters, HeadGap),  # what low precision rounds away
    Given,  # what a forward was given is there until its backward has used it
    HungTwice,  # and hooks hang once
    *(Arrivals, TokenWeights, TrainerMeans, Recompute),  # what becomes of the gradient of a micro-batch
    *(
        Between,
        Carried,
        Audit,
        Divisor,
        HeldBack,
        Use,
        AfterUse,
        Piled,
        TwoHands,
        Cancelled,
    ),  # laws: what is there is what was left, what is used was computed, what is trained is used
    Precision,  # what forward computes is what exact arithmetic gives
    WorkingCopies,  # what an update left in a copy of a weight is what the weight is
    ByRule,  # and what is left is what the optimizer's rule makes
    OwnMemory,  # where nothing else writes
    OwnReference,  # nor is held against itself
    *(FrozenMoves, FrozenWritten),  # what is frozen stays
    *(Unmeasured, MovedStatistics, FrozenStatistics),  # norms have measured what they use, in training alone
    *(Modes, ClipCalls),  # in the mode of training, clipped where it acts
    *(FreshState, HandedOver, Ties, Joined),  # and with what was learned of it
    *(
        SameDraws,
        Pairs,
        AlikeUnits,
        Loads,
        Unsaved,
        DataSet,
    ),  # other numbers in each step, labels of its own batch, units of their own, all that was loaded, one data set
    Relations,  # what must not matter, changed
    StillParameters,  # whether what was trained moved
    *(Replicas, Teachers, Streams, Clipping),  # what should be equal over ranks
    Health,  # how the model is doing
    Calibration,  # how far apart two good runs may be
    SdcCheck,  # whether the device is to blame: the last, for it looks at what the others have found
)
