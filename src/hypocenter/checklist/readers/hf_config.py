"""config.json of Hugging Face transformers."""

from __future__ import annotations

from hypocenter.checklist.catalogue import Source, reader
from hypocenter.checklist.checklist import Entry, Given
from hypocenter.checklist.nested import entries

_SIZES = {
    "hidden_size",
    "num_hidden_layers",
    "n_layer",
    "n_embd",
    "d_model",
    "num_layers",
    "num_attention_heads",
    "n_head",
    "vocab_size",
    "intermediate_size",
    "max_position_embeddings",
}
_OTHERS = {
    "num_key_value_heads",
    "rms_norm_eps",
    "hidden_act",
    "tie_word_embeddings",
    "rope_theta",
    "initializer_range",
}
_TEXT = "text_config."


def _accepts(source: Source) -> float:
    if source.is_directory:
        return 0.5 if (source.path / "config.json").is_file() else 0.0
    if source.path.suffix.lower() == ".toml" or not source.keys:
        return 0.0
    if "model_type" in source.keys and (source.keys & _SIZES or "text_config" in source.keys):
        return 0.9
    if "architectures" in source.keys:
        return 0.85
    return 0.6 if len(source.keys & (_SIZES | _OTHERS)) >= 3 else 0.0


@reader("hf-config", accepts=_accepts)
def read(source: Source) -> Given:
    """The config.json of a model of Hugging Face transformers, of any architecture; of a folder, the one in it.

    Of a model of several parts the text model is read (`text_config`).
    """
    if source.is_directory:
        path = source.path / "config.json"
        source = Source(path=path, is_directory=False, start=path.read_bytes(), is_whole=True)
    assert source.node is not None
    found = list(entries(source.node, source.name))
    inner = [_lifted(entry) for entry in found if entry.key.startswith(_TEXT)]
    outer = [entry for entry in found if not entry.key.startswith(_TEXT)]
    taken = {entry.key for entry in inner}
    kept = [entry for entry in outer if entry.key not in taken or entry.key not in ("model_type", "architectures")]
    outermost = [Entry(key=f"outer.{entry.key}", value=entry.value, spelled=entry.spelled, where=entry.where)
                 for entry in outer if entry not in kept]  # fmt: skip
    notes = (f"{source.name}: of the parts of this model the text model is read",) if inner else ()
    return Given(kind="hf-config", table="hf_config", entries=(*outermost, *kept, *inner), notes=notes)


def _lifted(entry: Entry) -> Entry:
    return Entry(key=entry.key.removeprefix(_TEXT), value=entry.value, spelled=entry.spelled, where=entry.where)
