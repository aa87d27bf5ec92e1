"""The order in which a difference travels within a step."""

from __future__ import annotations

from hypocenter.compare.comparison import STAGES, Spot

_RANK = {phase: rank for rank, phase in enumerate(STAGES)}
_AT_THE_END = ("lr", "clip_coef")  # scalars of the update: they act after the gradients, on the next step's parameters
END_OF_STEP = len(STAGES)


def stage_of(spot: Spot) -> int:
    """Where the spot stands: STAGES, then what acts at the update. Rows of one stage follow their `order`."""
    if spot.phase == "optimizer" and is_of_update(spot.site):
        return END_OF_STEP
    if is_given_to_loss(spot):
        return _RANK["loss"]
    if spot.phase == "comm":
        return _RANK["backward"]
    return _RANK.get(spot.phase, END_OF_STEP)


def is_given_to_loss(spot: Spot) -> bool:
    """Whether it is what the loss is computed from beside the model's output: labels, weights."""
    return spot.phase == "data" and spot.site.startswith("batch.loss")


def is_of_update(site: str) -> bool:
    """Whether it is a number that the update uses, such as the learning rate."""
    return site in _AT_THE_END or site.startswith("lr.")
