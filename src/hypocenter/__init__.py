"""Hypocenter: names where a training run broke numerically, why, and proves the cure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypocenter._version import __version__

if TYPE_CHECKING:
    from hypocenter.callbacks.lightning import LightningCallback
    from hypocenter.callbacks.transformers import TransformersCallback
    from hypocenter.relations.own import relation
    from hypocenter.replay.isolate import isolate
    from hypocenter.replay.remedies.islands import island
    from hypocenter.session import probe, watch
    from hypocenter.session.imposed.seed_all import seed_all

_LAZY = {
    "watch": "hypocenter.session",
    "probe": "hypocenter.session",
    "seed_all": "hypocenter.session.imposed.seed_all",
    "isolate": "hypocenter.replay.isolate",
    "relation": "hypocenter.relations.own",
    "island": "hypocenter.replay.remedies.islands",
    "TransformersCallback": "hypocenter.callbacks.transformers",
    "LightningCallback": "hypocenter.callbacks.lightning",
}

__all__ = [
    "LightningCallback",
    "TransformersCallback",
    "__version__",
    "island",
    "isolate",
    "probe",
    "relation",
    "seed_all",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'hypocenter' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, also those that are not loaded yet; not the subpackages."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
