"""Which rows of a recording belong to which stage."""

from __future__ import annotations

from hypocenter.compare.comparison import Spot, is_given_to_loss, is_of_update


def is_batch(spot: Spot) -> bool:
    """What the model is given."""
    is_digest = spot.phase == "data" and spot.site.startswith("batch.") and not is_given_to_loss(spot)
    return is_digest or (spot.phase == "forward" and spot.site == "" and spot.port.startswith("in"))


def is_weight(spot: Spot) -> bool:
    """Parameters before the update."""
    return spot.phase == "param" and spot.port == "value"


def is_forward(spot: Spot) -> bool:
    """Everything from the model's input to the loss."""
    return spot.phase in ("forward", "loss") or is_given_to_loss(spot)


def is_loss(spot: Spot) -> bool:
    """The loss as given to backward."""
    return spot.phase == "loss" and spot.site == "loss"


def is_backward(spot: Spot) -> bool:
    """Gradients of activations and of parameters."""
    return spot.phase in ("backward", "grad")


def is_gradient(spot: Spot) -> bool:
    """Gradients of parameters."""
    return spot.phase == "grad" and spot.port == "grad"


def is_update(spot: Spot) -> bool:
    """What an update uses and makes: gradients, learning rate, state, parameters."""
    return spot.phase in ("grad", "param", "optimizer") or is_of_update(spot.site)
