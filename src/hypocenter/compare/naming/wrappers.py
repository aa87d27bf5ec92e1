"""Parts of a site's name that only say in what the model was wrapped."""

from __future__ import annotations

import re

_ANYWHERE = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "_backbone"}
)
"""torch.compile, FSDP1, activation checkpointing, Lightning and MindSpore cells put these between two names."""
_IN_FRONT = frozenset(
    {"module", "network"}
)  # DDP, DeepSpeed, Megatron's Float16Module; MindSpore's loss and train cells
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def unwrapped(site: str) -> str:
    """The site without what wrappers add: `module._orig_mod.layers.0` is `layers.0`."""
    parts = [part for part in site.split(".") if part not in _ANYWHERE]
    start = 0
    while start < len(parts) and parts[start] in _IN_FRONT:
        start += 1
    return ".".join(parts[start:])


def template(site: str) -> str:
    """The site with `{}` for every part that is a number: `layers.3.mlp` is `layers.{}.mlp`."""
    return _NUMBER.sub("{}", site)


def numbers(site: str) -> tuple[str, ...]:
    """The parts of the site that are numbers, in order."""
    return tuple(_NUMBER.findall(site))
