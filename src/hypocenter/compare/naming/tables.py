"""Rule tables: one TOML file = the naming of one model library, turned into canonical names that all share.

The canonical names: `embed.tokens`, `layers.{}`, `layers.{}.norm_1`, `layers.{}.attn.q|k|v|qkv|out`,
`layers.{}.norm_2`, `layers.{}.mlp.gate|up|gate_up|down`, `norm`, `head`. In a table `{}` stands for a number.

    prefixes          what may stand in front of every name
    [sites]           modules, by path
    [layers] [layer]  paths of layers, and of what is in each of them, relative to it
    [ports]           ports of a module that belong elsewhere: the `out` of the trunk is the `out` of the decoder
    [fused]           how the parts lie in a fused module: concatenated or interleaved
    order_varies      whether other code of the same naming has the other order of [fused]
    [parameters]      parameters that do not stand in the module they belong to
    [leaves]          other names for weight and bias
    [swallowed]       modules that begin with a norm when their class says so: their `in` is the norm's
    sequence_first    canonical modules whose activations are (sequence, batch, ...); `layers.{}.` is all inside layers
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from hypocenter.toml import tomllib

_LEAVES = {
    "gamma": "weight", "beta": "bias", "embedding_table": "weight", "moving_mean": "running_mean",
    "moving_variance": "running_var",
}  # fmt: skip
"""What MindSpore's own cells call the parameters of norms and embeddings, whatever the naming of the modules."""
_ANYWHERE = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module", "_backbone"}
)
"""torch.compile, FSDP1, activation checkpointing, Lightning and MindSpore cells put these between two names."""
_IN_FRONT = frozenset(
    {"module", "network"}
)  # DDP, DeepSpeed, Megatron's Float16Module; MindSpore's loss and train cells
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def leaf_of(name: str) -> str:
    """Return the last part of a parameter's name as torch would have it."""
    return _LEAVES.get(name, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One naming. Paths and canonical names hold `{}` for numbers."""

    name: str = ""
    about: str = ""
    prefixes: tuple[str, ...] = ("",)
    sites: dict[str, str] = field(default_factory=dict[str, str])
    layers: dict[str, str] = field(default_factory=dict[str, str])
    layer: dict[str, str] = field(default_factory=dict[str, str])
    ports: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    fused: dict[str, str] = field(default_factory=dict[str, str])
    parameters: dict[str, str] = field(default_factory=dict[str, str])
    leaves: dict[str, str] = field(default_factory=dict[str, str])
    swallowed: dict[str, str] = field(default_factory=dict[str, str])
    sequence_first: tuple[str, ...] = ()
    order_varies: bool = False

    def module(self, path: str) -> str | None:
        """Return the canonical name of a module; None when the table does not know it."""
        return self._filled(_modules(self.name), path)

    def parameter(self, path: str) -> str | None:
        """Return the canonical name of a parameter; None when the table does not know its module."""
        known = self._filled(self.parameters, path)
        if known is not None:
            return known
        module, _, leaf = path.rpartition(".")
        owner = self.module(module)
        return None if owner is None else f"{owner}.{self.leaves.get(leaf) or leaf_of(leaf)}".lstrip(".")

    def observed(self, path: str, side: str, swallowing: frozenset[str]) -> str | None:
        """Return the canonical module that a port of a module belongs to; None when others have no such module.

        Args:
            path: of the module.
            side: `in` or `out`.
            swallowing: paths of the modules that begin with a norm.
        """
        if side == "in" and path in swallowing:
            return self._filled(self.swallowed, path)
        if side == "in" and any(inner.rpartition(".")[0] == path for inner in swallowing):
            return None  # what goes into it has not been through the norm, which elsewhere stands in front of it
        elsewhere = self.ports.get(template(path), {}).get(side)
        return self.module(path) if elsewhere is None else elsewhere

    def swallows(self, path: str, kind: str) -> bool:
        """Return whether the module of this path and class (or of this parameter's path) begins with a norm."""
        module, _, leaf = path.rpartition(".")
        if leaf.startswith("layer_norm_"):
            return template(module) in self.swallowed
        return template(path) in self.swallowed and "norm" in kind.lower()

    def is_sequence_first(self, canonical: str) -> bool:
        """Return whether activations of this module are (sequence, batch, ...)."""
        name = template(canonical)
        return any(name == start or (start.endswith(".") and name.startswith(start)) for start in self.sequence_first)

    @staticmethod
    def _filled(known: dict[str, str], path: str) -> str | None:
        name = known.get(template(path))
        if name is None or "{}" not in name:
            return name
        return name.format(*numbers(path))


@cache
def tables() -> dict[str, Table]:
    """Read all rule tables of this folder, by name."""
    found: dict[str, Table] = {}
    for file in sorted(resources.files("hypocenter.compare.naming").iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".toml"):
            name = file.name.removesuffix(".toml").replace("_", "-")
            values: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
            found[name] = msgspec.convert({**values, "name": name}, type=Table)
    return found


@cache
def _modules(name: str) -> dict[str, str]:
    """Return the path of every module that a table knows, with `{}` for numbers, and its canonical name."""
    table = tables()[name]
    paths = dict(table.sites)
    for where, canonical in table.layers.items():
        for inside, role in table.layer.items():
            paths[f"{where}.{inside}".rstrip(".")] = f"{canonical}.{role}".rstrip(".")
    return paths


def unwrapped(site: str) -> str:
    """Return the site without what wrappers add: `module._orig_mod.layers.0` becomes `layers.0`."""
    parts = [part for part in site.split(".") if part not in _ANYWHERE]
    start = 0
    while start < len(parts) and parts[start] in _IN_FRONT:
        start += 1
    return ".".join(parts[start:])


def template(site: str) -> str:
    """Return the site with `{}` for every part that is a number: `layers.3.mlp` becomes `layers.{}.mlp`."""
    return _NUMBER.sub("{}", site)


def numbers(site: str) -> tuple[str, ...]:
    """Return the parts of the site that are numbers, in order."""
    return tuple(_NUMBER.findall(site))
