"""A checkpoint's tensors as another naming has them: names, shapes and fusions, without values."""

from __future__ import annotations

from pathlib import Path

from hypocenter.compare.comparison import SiteCard
from hypocenter.compare.naming.canonical import Naming, naming_of
from hypocenter.compare.naming.tables import Table, numbers, tables, template
from hypocenter.compare.weights.checkpoint import Checkpoint, CheckpointError, Planned, Tensor
from hypocenter.compare.weights.match import NEGLIGIBLE, cards_of
from hypocenter.errors import UnknownNameError

NAMINGS = {"hf": "hf-llama", "megatron": "megatron", "mindformers": "mindformers", "torchtitan": "torchtitan"}
"""What can be asked for, and its table in compare/naming."""

_FUSES = {"megatron": (("attn.qkv", ("attn.q", "attn.k", "attn.v")), ("gate_up", ("gate", "up")))}
_OWN = {("mindformers", "embed.tokens.weight"): "model.tok_embeddings.embedding_weight"}
_Shapes = dict[str, tuple[int, ...]]


def planned(checkpoint: Checkpoint, naming: str) -> Checkpoint:
    """Return the tensors, without values, that a checkpoint of that naming has for the same network.

    Raises:
        UnknownNameError: no such naming.
        CheckpointError: a tensor has no place in it, or a fused one cannot be split without the number of heads.
    """
    if naming not in NAMINGS:
        raise UnknownNameError(f"no naming {naming!r}", where="--naming", fix=f"there are {', '.join(NAMINGS)}")
    cards = [card for card in cards_of(checkpoint) if not NEGLIGIBLE.search(card.spot.site)]
    spoken = naming_of(cards)
    shapes = _fused(_split(_canonical(cards, spoken, checkpoint), checkpoint), naming)
    table = tables()[NAMINGS[naming]]
    dtype = next(iter(checkpoint.tensors.values())).dtype
    tensors: dict[str, Tensor] = {_name(table, naming, n): Planned(shape=s, dtype=dtype) for n, s in shapes.items()}
    return Checkpoint(path=Path(f"({naming})"), kind="planned", tensors=tensors, settings=checkpoint.settings)


def _canonical(cards: list[SiteCard], spoken: Naming, checkpoint: Checkpoint) -> _Shapes:
    found: _Shapes = {}
    for card in cards:
        role = spoken.role(card)
        if not role.known:
            raise CheckpointError(
                f"nobody knows what {card.spot.site!r} is called elsewhere", where=str(checkpoint.path),
                why=f"its names are read as those of {spoken.name}", fix="convert with --like B and --map FILE",
            )  # fmt: skip
        found[role.name] = card.shape[::-1] if card.module == "Conv1D" else card.shape
    return found


def _split(shapes: _Shapes, checkpoint: Checkpoint) -> _Shapes:
    """Replace fused tensors by their parts."""
    found: _Shapes = {}
    for name, shape in shapes.items():
        module, _, leaf = name.rpartition(".")
        if module.endswith("attn.qkv"):
            stem = module.removesuffix("qkv")
            sizes = _attention_sizes(name, shape[0], checkpoint)
            found |= {f"{stem}{part}.{leaf}": (n, *shape[1:]) for part, n in zip("qkv", sizes, strict=True)}
        elif module.endswith(".gate_up"):
            stem = module.removesuffix("gate_up")
            down = shapes.get(f"{stem}down.weight", (0, 0))
            has_gate = shape[0] == 2 * down[-1]
            n = shape[0] // 2 if has_gate else shape[0]
            found |= {f"{stem}{part}.{leaf}": (n, *shape[1:]) for part in (("gate", "up") if has_gate else ("up",))}
        else:
            found[name] = shape
    return found


def _attention_sizes(name: str, rows: int, checkpoint: Checkpoint) -> tuple[int, int, int]:
    heads, groups = (checkpoint.settings.get(key, 0) for key in ("num_attention_heads", "num_query_groups"))
    if not heads or not groups or rows % (heads + 2 * groups):
        raise CheckpointError(
            "a fused QKV cannot be split", where=f"{checkpoint.path}: {name}",
            why=f"{rows} rows, {heads or 'unknown'} heads, {groups or 'unknown'} query groups",
            fix="give --heads N --groups N, or put the config.json beside the weights",
        )  # fmt: skip
    head = rows // (heads + 2 * groups)
    return heads * head, groups * head, groups * head


def _fused(shapes: _Shapes, naming: str) -> _Shapes:
    """Replace parts by the fused tensors that the naming has."""
    found = dict(shapes)
    for whole, parts in _FUSES.get(naming, ()):
        for name, shape in shapes.items():
            module, _, leaf = name.rpartition(".")
            if not module.endswith(f".{parts[0]}"):
                continue
            stem = module.removesuffix(parts[0])
            names = [f"{stem}{part}.{leaf}" for part in parts]
            if all(part in found for part in names):
                rows = sum(found.pop(part)[0] for part in names)
                found[f"{stem}{whole}.{leaf}"] = (rows, *shape[1:])
    return found


def _name(table: Table, naming: str, canonical: str) -> str:
    """Return the name that the naming has for a canonical parameter."""
    if (naming, canonical) in _OWN:
        return _OWN[naming, canonical]
    module, _, leaf = canonical.rpartition(".")
    wanted = template(module)
    paths = _paths(table)
    path = paths.get(wanted)
    if path is None and wanted.endswith(".up") and wanted.removesuffix("up") + "gate_up" in paths:
        path = paths[wanted.removesuffix("up") + "gate_up"]  # Megatron calls it linear_fc1 either way
    if path is None:
        raise CheckpointError(f"{naming} has no name for {canonical!r}", fix="convert with --like B and --map FILE")
    return f"{path.format(*numbers(module))}.{leaf}"


def _paths(table: Table) -> dict[str, str]:
    """Return for each canonical module the first path that the table has for it."""
    found: dict[str, str] = {}
    for path, canonical in table.sites.items():
        found.setdefault(canonical, path)
    for where, owner in table.layers.items():
        for inside, role in table.layer.items():
            found.setdefault(f"{owner}.{role}".rstrip("."), f"{where}.{inside}".rstrip("."))
    return found
