"""Which module a spot belongs to, and what it is called there."""

from __future__ import annotations

from hypocenter.compare.comparison import Spot, is_of_update

_OF_PARAMETERS = frozenset({"param", "grad", "optimizer", "scaler"})
_OF_MODULES = frozenset({"forward", "backward"})


def owner(spot: Spot) -> str:
    """Path of the module: of a parameter the one that holds it; the root for batches, losses and scalars."""
    if spot.phase in _OF_MODULES:
        return spot.site
    if spot.phase in _OF_PARAMETERS and not is_of_update(spot.site):
        return spot.site.rpartition(".")[0]
    return ""


def label(spot: Spot) -> str:
    """What the spot is called within its module: `out[0]`, `weight grad`, `out[0] call 1`."""
    name = "" if spot.phase in _OF_MODULES else spot.site.removeprefix(f"{owner(spot)}.") + " "
    return f"{name}{spot.port}" + (f" call {spot.call}" if spot.call else "")
