"""The files of a checkpoint that has several: an index names them, and only names inside its own folder count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypocenter.compare.weights.checkpoint import CheckpointError

_AT_MOST_BYTES = 256 << 20  # of an index or a configuration
_HEADS = {
    "num_attention_heads": ("num_attention_heads", "n_heads", "n_head", "num_heads"),
    "num_query_groups": ("num_key_value_heads", "num_query_groups", "n_kv_heads", "num_attention_heads", "n_heads"),
    "head_dim": ("head_dim", "kv_channels"),
}
_SIZE = ("hidden_size", "n_embd", "dim", "d_model")


def indexed_files(path: Path, pattern: str) -> dict[Path, list[str] | None]:
    """Return the files of a checkpoint, each with the tensors to take from it; None means all.

    Raises:
        CheckpointError: an index is damaged or names a file outside its folder.
    """
    if path.is_dir():
        indices = sorted(path.glob(f"{pattern}.index.json"))
        if not indices:
            return dict.fromkeys(sorted(file for file in path.glob(pattern) if file.is_file()))
        path = next((index for index in indices if index.name.startswith(("model.", "pytorch_model."))), indices[0])
    if path.suffix != ".json":
        return {path: None}
    files: dict[Path, list[str] | None] = {}
    for name, file in _weight_map(path).items():
        if Path(file).name != file or file in ("", ".", "..") or "\\" in file or "\0" in file:
            raise CheckpointError(
                "the index names a file outside its folder", where=str(path), why=repr(file)[:200],
                fix="an index may only name files beside it",
            )  # fmt: skip
        names = files.setdefault(path.parent / file, [])
        assert names is not None
        names.append(name)
    for file in files:
        if not file.is_file():
            raise CheckpointError("a file of the index is missing", where=str(file), fix="copy all files again")
    return files


def settings_beside(path: Path) -> dict[str, int]:
    """Read heads and groups from the config.json beside a checkpoint; empty when there is none that says."""
    folder = path if path.is_dir() else path.parent
    try:
        config: Any = _json(folder / "config.json")
    except (CheckpointError, OSError):
        return {}
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):  # type: ignore[union-attr]
        config = {**config, **config["text_config"]}
    return settings_of(config) if isinstance(config, dict) else {}  # type: ignore[arg-type]


def settings_of(config: dict[str, Any]) -> dict[str, int]:
    """Return num_attention_heads, num_query_groups and head_dim, under whatever names the configuration has them."""
    found: dict[str, int] = {}
    for name, aliases in _HEADS.items():
        value = next((config[alias] for alias in aliases if type(config.get(alias)) is int), None)
        if value is not None and value > 0:
            found[name] = value
    size = next((config[name] for name in _SIZE if type(config.get(name)) is int), 0)
    if "head_dim" not in found and size > 0 and found.get("num_attention_heads"):
        found["head_dim"] = size // found["num_attention_heads"]
    return found


def _weight_map(path: Path) -> dict[str, str]:
    index = _json(path)
    known = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(known, dict) or any(not isinstance(file, str) for file in known.values()):  # type: ignore[union-attr]
        raise CheckpointError("the index has no weight_map", where=str(path))
    return known  # type: ignore[return-value]


def _json(path: Path) -> Any:
    if path.stat().st_size > _AT_MOST_BYTES:
        raise CheckpointError("too large for an index or a configuration", where=str(path))
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError("not JSON", where=str(path), why=str(error)[:200]) from error
