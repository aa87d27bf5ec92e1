"""A tokenizer's folder: its special ids from JSON, and decoding by the `tokenizers` package if it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hypocenter.checklist.data.side import SPECIAL
from hypocenter.errors import ConfigError

_AT_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """What the files of a tokenizer say."""

    folder: Path
    special: dict[str, int] = field(default_factory=dict)  # bos, eos, pad -> id
    decoder: Any = None  # tokenizers.Tokenizer
    why_not: str = ""  # why nothing can be decoded

    def decode(self, ids: Sequence[int]) -> str | None:
        """Return the text with special tokens in it; None if it cannot be decoded."""
        if self.decoder is None:
            return None
        try:
            return str(self.decoder.decode(list(ids), skip_special_tokens=False))
        except Exception:  # an id that the tokenizer does not have
            return None


def open_tokenizer(folder: Path) -> Tokenizer:
    """Read tokenizer.json and tokenizer_config.json.

    Raises:
        ConfigError: the folder holds neither, or one that is no JSON.
    """
    model, config = _read(folder / "tokenizer.json"), _read(folder / "tokenizer_config.json")
    if model is None and config is None:
        raise ConfigError(
            "no tokenizer found", where=str(folder), why="it has neither tokenizer.json nor tokenizer_config.json",
            fix="name the folder that `tokenizer.save_pretrained` wrote",
        )  # fmt: skip
    decoder, why_not = (
        _decoder(folder / "tokenizer.json") if model is not None else (None, "there is no tokenizer.json")
    )
    return Tokenizer(folder=folder, special=_special(model or {}, config or {}), decoder=decoder, why_not=why_not)


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _AT_MOST_BYTES:
            raise ValueError(f"it is larger than {_AT_MOST_BYTES >> 20} MiB")
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, ValueError, RecursionError, msgspec.DecodeError) as error:
        raise ConfigError(
            "the tokenizer cannot be read", where=str(path), why=str(error), fix="save it again"
        ) from error
    return found


def _special(model: dict[str, Any], config: dict[str, Any]) -> dict[str, int]:
    """Return ids of special tokens: names are in the config, ids among added tokens or in the vocabulary."""
    ids: dict[str, int] = {}
    inner = model.get("model")
    vocabulary = inner.get("vocab") if isinstance(inner, dict) else None
    if isinstance(vocabulary, dict):
        ids.update({text: i for text, i in vocabulary.items() if isinstance(i, int)})
    added = model.get("added_tokens")
    for one in added if isinstance(added, list) else ():
        if isinstance(one, dict) and isinstance(one.get("id"), int) and isinstance(one.get("content"), str):
            ids[one["content"]] = one["id"]
    in_config = config.get("added_tokens_decoder")
    for i, one in in_config.items() if isinstance(in_config, dict) else ():
        if isinstance(one, dict) and isinstance(one.get("content"), str) and i.isdigit():
            ids[one["content"]] = int(i)
    found: dict[str, int] = {}
    for name in SPECIAL:
        token = config.get(f"{name}_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and text in ids:
            found[name] = ids[text]
    return found


def _decoder(path: Path) -> tuple[Any, str]:
    try:
        from tokenizers import Tokenizer as Fast  # not a dependency: only to look at samples
    except ImportError:
        return None, "the package tokenizers is not installed"
    try:
        return Fast.from_file(str(path)), ""
    except Exception as error:  # the package raises bare Exception
        return None, str(error)
