"""A fix names only keys that the framework has which it is for: over all items and all frameworks."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypocenter.checklist.advising import fix, remarks
from hypocenter.checklist.checklist import Configuration, Entry, Given, Scalar, Setting
from hypocenter.checklist.compare import compare
from hypocenter.checklist.items.item import Item, load
from hypocenter.checklist.reading import read, settled
from hypocenter.checklist.tables import names, read_toml, table

ITEMS = load().by_key
MODELS = tuple(read_toml("hf_models"))
KEY = re.compile(r"--[A-Za-z][\w-]*|(?<![\w.])[A-Za-z]\w*(?:\.\w+)*_\w+(?:\.\w+)*(?=: | = )")
LINE = re.compile(r"^made: (?:leave out |export )?(--)?([\w.-]+)")
OTHERS: dict[str, tuple[Scalar, ...]] = {
    "count": (7, 1), "number": (0.123, 0), "flag": (True, False), "text": ("other",), "version": ("9.9.9",),
    "dtype": ("float32", "bfloat16", "float16"), "word": ("constant", "adamw", "rope", "layernorm", "swiglu"),
}  # fmt: skip


def side(name: str, *entries: Entry) -> Configuration:
    """A side of one file, which says only this; the rest are the framework's defaults."""
    given = (Given(kind=name, table=name, entries=entries),)
    return Configuration(label="made", kinds=(name,), settings=settled(given), given=given)


def known_to(name: str, model: str = "") -> set[str]:
    """All keys of a table, also by their last word; of transformers those that the class of the model has."""
    found = table(name)
    keys = {*found.names, *found.joined.keys, *found.set_aside.keys, *found.flags, *found.switches.keys}
    if model:
        keys = {*read_toml("hf_models")[model]["defaults"], "model_type"}
    return {word for key in keys for word in (key, key.rpartition(".")[2]) if word.strip("*.")}


def fixes(item: Item, candidate: Configuration) -> Iterator[str]:
    """What is told to do so that this side says something else than it does."""
    now = candidate.settings.get(item.key) or Setting(item=item.key, value=None, spelled="")
    for value in OTHERS.get(item.kind, ()):
        if value != now.value:
            yield fix(item, Setting(item=item.key, value=value, spelled=""), now, candidate)
    yield from (remark.fix for remark in remarks(item, candidate, candidate))


def foreign(text: str, known: set[str]) -> list[str]:
    """The keys in a text that are not among those known."""
    own = "; ".join(piece for piece in text.split("; ") if not piece.startswith("hypocenter "))
    told = [match[0] for match in KEY.finditer(own)]
    told += [match[2] for match in [LINE.match(own)] if match]
    plain = [key.removeprefix("--").replace("-", "_") for key in told]
    return [key for key in plain
            if not any(fnmatch.fnmatchcase(key, each) for each in known)
            and not key.startswith(("torch.", "torch_npu")) and not key.isupper()]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in names() if name not in ("hf_config", "recording")])
def test_every_key_is_of_the_framework(name: str) -> None:
    candidate, known = side(name), known_to(name)

    told = [(item.key, text) for item in ITEMS.values() for text in fixes(item, candidate)]

    assert {item for item, _ in told} >= {item.key for item in ITEMS.values() if item.kind in OTHERS}
    assert [(item, text, wrong) for item, text in told if (wrong := foreign(text, known))] == []


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_every_key_is_of_the_models_class(model: str) -> None:
    candidate = side("hf_config", Entry(key="model_type", value=model, spelled=f"model_type: {model}"))
    known = known_to("hf_config", model)

    for item in ITEMS.values():
        if item.key.startswith(("model.", "moe.")):
            for text in fixes(item, candidate):
                told = LINE.match(text)
                assert told is None or told[2] in known, (item.key, text)


@pytest.mark.parametrize(
    ("model", "item", "value", "line"),
    [
        ("llama", "model.qkv_bias", True, "made: attention_bias: true"),
        (
            "qwen2",
            "model.qkv_bias",
            False,
            "no single key of transformers sets it: in the candidate's program, make it",
        ),
        ("llama", "model.attention_output_bias", True, "made: attention_bias: true"),
        ("gpt2", "model.num_layers", 24, "made: n_layer: 24"),
        ("llama", "model.num_layers", 24, "made: num_hidden_layers: 24"),
        ("llama", "model.rope_theta", 5e5, "made: rope_theta: 500000"),
    ],
)
def test_a_model_is_told_in_its_own_keys(model: str, item: str, value: Scalar, line: str) -> None:
    candidate = side("hf_config", Entry(key="model_type", value=model, spelled=f"model_type: {model}"))

    told = fix(ITEMS[item], Setting(item=item, value=value, spelled=""), candidate.settings[item], candidate)

    assert told.startswith(line)


@pytest.mark.parametrize(
    ("item", "line"),
    [
        ("optimizer.min_lr", "lr_scheduler_type: cosine_with_min_lr, lr_scheduler_kwargs.min_lr: 1e-05"),
        ("weights.seed", "ta.json: seed: 1234"),
        ("precision.compute_dtype", "ta.json: bf16: true"),
        ("batch.micro_batch_size", "ta.json: per_device_train_batch_size: 1"),
    ],
)
def test_a_trainer_is_told_in_its_own_keys(item: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "ta.json").write_text(json.dumps({"learning_rate": 1e-4, "lr_scheduler_type": "cosine"}))
    (tmp_path / "a.sh").write_text(
        "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --lr 1e-4 --min-lr 1e-5 "
        "--lr-decay-style cosine --micro-batch-size 1 --global-batch-size 8 --bf16\n"
    )

    found = compare(read([tmp_path / "a.sh"]), read([tmp_path / "ta.json"]))

    (row,) = [row for row in found.rows if row.item == item]
    assert row.fix == line
