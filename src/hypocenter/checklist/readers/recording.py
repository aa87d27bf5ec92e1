"""Recordings of `hypocenter run`: what was measured on the program, and the configuration that its model carries."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hypocenter.axes import AXES
from hypocenter.checklist.catalogue import Source, reader
from hypocenter.checklist.checklist import ConfigurationError, Entry, Given, Value
from hypocenter.checklist.tables import read_toml, table
from hypocenter.checklist.words import plain
from hypocenter.compare.naming.tables import Table, tables, unwrapped
from hypocenter.record.facts_file import Facts, ModuleFacts, OptimizerFacts
from hypocenter.record.layout import is_recording
from hypocenter.record.reader import RecordedRun, open_run

_CONFIG = "config."
_EPS = ("eps", "variance_epsilon", "epsilon", "layernorm_epsilon")
_LAYER = re.compile(r"^layers\.(\d+)$")
_ACTIVATIONS = {
    "silu": "silu",
    "siluactivation": "silu",
    "gelu": "gelu",
    "newgeluactivation": "gelu_tanh",
    "relu": "relu",
    "geluactivation": "gelu",
    "pytorchgelutanh": "gelu_tanh",
    "gelutanh": "gelu_tanh",
    "fastgeluactivation": "gelu_tanh",
}
_LEAST_KNOWN = 3  # modules a naming must know before it is believed


def _accepts(source: Source) -> float:
    if source.is_directory:
        return 0.95 if is_recording(source.path) else 0.0
    return 0.95 if source.name == "run.json" and {"format", "world_size", "command"} <= source.keys else 0.0


@reader("recording", accepts=_accepts)
def read(source: Source) -> Given:
    """A run directory of Hypocenter, or its run.json: sizes, norms, formats, optimizer as they were measured."""
    path: Path = source.path if source.is_directory else source.path.parent
    run = open_run(path)
    facts = run.facts()
    if facts is None:
        raise ConfigurationError(
            "the recording has no facts", where=str(path), why="rank 0 left no facts.json that can be read",
            fix="record again with `hypocenter run`",
        )  # fmt: skip
    found = (*entries(facts), *_places(run), *_versions(run))
    carried = _carried(facts)
    return Given(kind="recording", table="recording", entries=found, alongside=(carried,) if carried else ())


def _places(run: RecordedRun) -> Iterator[Entry]:
    place = next(iter(run.places.values()), None)
    for axis in AXES if place is not None else ():
        group = place.groups.get(axis) if place is not None else None
        if group:
            yield Entry(
                key=f"place.{axis}", value=len(group), spelled=f"{axis} group of {len(group)} ranks", where="rank.json"
            )


def _versions(run: RecordedRun) -> Iterator[Entry]:
    for name, version in run.run.versions.items():
        yield Entry(key=f"versions.{name}", value=version, spelled=f"{name} {version}", where="run.json")


def _carried(facts: Facts) -> Given | None:
    """Return the configuration object that transformers or Megatron-Core put on the model; None: there is none."""
    module = next((m for m in facts.modules if any(key.startswith(_CONFIG) for key in m.attributes)), None)
    if module is None:
        return None
    values = {key.removeprefix(_CONFIG): value for key, value in module.attributes.items() if key.startswith(_CONFIG)}
    is_megatron = "num_moe_experts" in values or "layernorm_zero_centered_gamma" in values
    name = "megatron" if is_megatron else "hf_config"
    known = [key for key in values if table(name).knows(key)]
    if len(known) < 3:
        return None
    kind = _model_type(module.kind)
    if not is_megatron and "model_type" not in values and kind:
        values["model_type"] = kind
    found = tuple(
        Entry(
            key=key,
            value=plain(value),
            spelled=f"config.{key}: {value}"[:200],
            where=f"facts.json: {module.path or module.kind}",
        )
        for key, value in values.items()
    )
    return Given(kind="recording", table=name, entries=found)


def _model_type(kind: str) -> str:
    """Return the known model type of a class: `llama` for `LlamaForCausalLM`; empty when none fits."""
    word = kind.lower()
    fitting = [name for name in read_toml("hf_models") if word.startswith(name.replace("_", ""))]
    return max(fitting, key=len, default="")


class Network:
    """The modules of a recording by their canonical names, as far as a naming knows them."""

    def __init__(self, facts: Facts) -> None:
        self.modules = [module for module in facts.modules if module.path]
        self.by_name = _named(self.modules)
        self.shapes = {
            _joined(module.path, name): (tensor.shape, tensor.dtype)
            for module in facts.modules for name, tensor in module.parameters.items()
        }  # fmt: skip

    def first(self, *names: str) -> ModuleFacts | None:
        """Return the module of the first of these canonical names that exists; None when none does."""
        return next((self.by_name[name] for name in names if name in self.by_name), None)

    def norms(self) -> list[ModuleFacts]:
        """Return all modules that are norms by their class."""
        return [module for module in self.modules if "norm" in module.kind.lower() and module.parameters]


def entries(facts: Facts) -> Iterator[Entry]:
    """Yield what the facts of a rank say, by our own keys (names/recording.toml), each with its module."""
    network = Network(facts)
    for key, value, module in (
        *_sizes(network),
        *_norms(network),
        *_biases(network),
        *_formats(network),
        *_rest(network),
    ):
        if value is not None:
            path = module.path if module is not None else ""
            yield Entry(
                key=f"modules.{key}", value=value, spelled=f"{path or 'the modules'}: {key} {value}".replace("_", " "),
                where=f"facts.json: {path}" if path else "facts.json",
            )  # fmt: skip
    for optimizer in facts.optimizers[:1]:
        yield from _optimizer(optimizer, network)
    for name, value in facts.settings.items():
        yield Entry(
            key=f"settings.{name}", value=plain(value), spelled=f"{name}: {value}"[:200], where="facts.json: settings"
        )


_Found = Iterator["tuple[str, Value, ModuleFacts | None]"]


def _named(modules: list[ModuleFacts]) -> dict[str, ModuleFacts]:
    best: dict[str, ModuleFacts] = {}
    for names in tables().values():
        found = _by(names, modules)
        if len(found) > max(len(best), _LEAST_KNOWN):
            best = found
    return best


def _by(table: Table, modules: list[ModuleFacts]) -> dict[str, ModuleFacts]:
    found: dict[str, ModuleFacts] = {}
    for module in modules:
        path = unwrapped(module.path)
        for prefix in table.prefixes:
            name = table.module(path.removeprefix(prefix)) if path.startswith(prefix) else None
            if name is not None:
                found.setdefault(name, module)
                break
    return found


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shape(module: ModuleFacts | None) -> tuple[int, ...]:
    weight = module.parameters.get("weight") if module is not None else None
    return weight.shape if weight is not None else ()


def _sizes(network: Network) -> _Found:
    layers = [int(match[1]) for name in network.by_name if (match := _LAYER.match(name))]
    yield "num_layers", (max(layers) + 1 if layers else None), network.first("layers.0")
    attention = network.first("layers.0.attn")
    for key, names in (
        ("num_attention_heads", ("num_heads", "num_attention_heads", "n_head", "n_heads", "heads")),
        ("num_key_value_heads", ("num_key_value_heads", "n_kv_heads", "num_query_groups")),
        ("head_dim", ("head_dim", "hidden_size_per_attention_head")),
    ):
        yield key, _attribute(attention, names), attention
    tokens = network.first("embed.tokens")
    shape = _shape(tokens)
    if len(shape) == 2:
        yield "vocab_size", shape[0], tokens
        yield "hidden_size", shape[1], tokens
    positions = network.first("embed.positions")
    yield "max_position_embeddings", (_shape(positions) or (None,))[0], positions
    yield "intermediate_size", _inner(network, shape[1] if len(shape) == 2 else 0), network.first("layers.0.mlp")


def _inner(network: Network, hidden: int) -> int | None:
    """Return the inner size of the feed-forward network, by the matrix back to the hidden size; None: not known."""
    shape = _shape(network.first("layers.0.mlp.down"))
    rest = [size for size in shape if size != hidden]
    return rest[0] if len(shape) == 2 and len(rest) == 1 else None


def _attribute(module: ModuleFacts | None, names: Iterable[str]) -> Value:
    found = next((module.attributes[name] for name in names if name in module.attributes), None) if module else None
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def _norms(network: Network) -> _Found:
    norms = [module for name, module in network.by_name.items() if "norm" in name.rpartition(".")[2]] or network.norms()
    if not norms:
        return
    kind = Counter("rmsnorm" if "rms" in module.kind.lower() else "layernorm" for module in norms).most_common(1)[0][0]
    yield "norm_type", kind, norms[0]
    eps = Counter(_attribute(module, _EPS) for module in norms)
    eps.pop(None, None)
    if eps:
        value = eps.most_common(1)[0][0]
        which = next(module for module in norms if _attribute(module, _EPS) == value)
        yield "norm_eps", value if len(eps) == 1 else tuple(sorted(eps, key=float)), which  # type: ignore[arg-type]


def _biases(network: Network) -> _Found:
    for key, names in (
        ("qkv_bias", ("layers.0.attn.q", "layers.0.attn.qkv")), ("attention_output_bias", ("layers.0.attn.out",)),
        ("mlp_bias", ("layers.0.mlp.up", "layers.0.mlp.gate_up")), ("head_bias", ("head",)),
    ):  # fmt: skip
        module = network.first(*names)
        yield key, (("bias" in module.parameters) if module and "weight" in module.parameters else None), module
    fused, apart = network.first("layers.0.attn.qkv"), network.first("layers.0.attn.q")
    yield "fused_qkv", (fused is not None if fused or apart else None), fused or apart


def _formats(network: Network) -> _Found:
    dtypes = Counter(dtype for shape, dtype in network.shapes.values() if len(shape) > 1)
    if dtypes:
        yield "params_dtype", dtypes.most_common(1)[0][0], None
    for key, module in (
        ("embedding_params_dtype", network.first("embed.tokens")),
        ("norm_params_dtype", network.first("norm")),
    ):
        weight = module.parameters.get("weight") if module is not None else None
        yield key, (weight.dtype if weight is not None else None), module


def _rest(network: Network) -> _Found:
    act = network.first("layers.0.mlp.act")
    mlp = network.first("layers.0.mlp")
    word = _ACTIVATIONS.get(act.kind.lower()) if act is not None else None
    if act is not None and act.attributes.get("approximate") == "tanh":
        word = "gelu_tanh"
    if word is not None:
        has_gate = network.first("layers.0.mlp.gate", "layers.0.mlp.gate_up") is not None
        yield (
            "activation",
            {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh"}.get(word, word) if has_gate else word,
            act or mlp,
        )
    drops = [module for module in network.modules if module.kind == "Dropout" and "p" in module.attributes]
    if drops:
        highest = max(drops, key=lambda module: float(module.attributes["p"]) if module.training else 0.0)
        yield "hidden_dropout", (float(highest.attributes["p"]) if highest.training else 0.0), highest


def _optimizer(optimizer: OptimizerFacts, network: Network) -> Iterator[Entry]:
    where = "facts.json: optimizers"
    yield Entry(key="optimizer.kind", value=optimizer.kind, spelled=f"optimizer {optimizer.kind}", where=where)
    if not optimizer.groups:
        return
    for name, value in optimizer.groups[0].options.items():
        yield Entry(key=f"optimizer.options.{name}", value=plain(value), spelled=f"{name}: {value}"[:200], where=where)
    decays = [_decay(group.options) for group in optimizer.groups]
    spelled = f"weight_decay: {', '.join(f'{decay:g}' for decay in decays)}"
    yield Entry(key="optimizer.weight_decay", value=max(decays), spelled=spelled, where=where)
    small = [
        decay
        for decay, group in zip(decays, optimizer.groups, strict=True)
        for name in group.parameters
        if len(network.shapes.get(name, ((0, 0), ""))[0]) < 2
    ]
    if small and max(decays) > 0:
        n = sum(decay > 0 for decay in small)
        spelled = f"weight decay on {n} of {len(small)} biases and one-dimensional weights"
        yield Entry(key="optimizer.decay_bias_and_norm", value=n > 0, spelled=spelled, where=where)


def _decay(options: dict[str, Any]) -> float:
    value = options.get("weight_decay", 0.0)
    return float(value) if isinstance(value, (int, float)) else 0.0
