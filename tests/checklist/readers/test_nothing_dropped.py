"""Whatever a file says is a setting, unknown, or set aside: for every reader, with any keys and values."""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.checklist.checklist import Configuration, Setting
from hypocenter.checklist.reading import read
from hypocenter.checklist.tables import table

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
SCALAR = st.one_of(
    st.integers(-5, 10**6), st.booleans(), st.floats(0, 10, allow_nan=False).map(lambda x: round(x, 4)),
    st.sampled_from(["a", "bf16", "cosine", "AdamW", "true", "none", "1e-5", "x y"]),
)  # fmt: skip
IN_A_LOG = SCALAR.filter(lambda value: not isinstance(value, str) or value not in ("true", "none", "1e-5"))
"""A log does not tell a text from what it spells, a checkpoint does."""
OWN = st.text(alphabet="abcxyz_", min_size=3, max_size=8).map(lambda name: f"own_{name}")


def keys_of(name: str, plain: bool) -> st.SearchStrategy[str]:
    known = table(name)
    found = [
        key for key in (*known.names, *known.joined.keys, *known.set_aside.keys) if "*" not in key and "[" not in key
    ]
    return st.one_of(st.sampled_from([key for key in found if not plain or "." not in key]), OWN)


def listed(found: Configuration) -> list[Setting]:
    return [*found.settings.values(), *found.unknown, *found.set_aside]


def assert_all_is_there(found: Configuration, spelled: list[str]) -> None:
    told = "\n".join(setting.spelled for setting in listed(found))
    missing = [text for text in spelled if text not in told]
    assert missing == []


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        node = tree
        *parents, leaf = key.split(".")
        for parent in parents:
            inner = node.setdefault(parent, {})
            if not isinstance(inner, dict):
                inner = node[parent] = {}
            node = inner
        if not isinstance(node.get(leaf), dict):
            node[leaf] = value
    return tree


def leaves(tree: dict[str, Any], prefix: str = "") -> list[str]:
    return [
        path
        for key, value in tree.items()
        for path in (leaves(value, f"{prefix}{key}.") if isinstance(value, dict) and value else [f"{prefix}{key}"])
    ]


def in_file(name: str, text: str) -> Configuration:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text)
        return read([path])


FILES: list[tuple[str, str, str, dict[str, Any], Callable[[dict[str, Any]], str], str]] = [
    ("mindformers", "mindformers-yaml", "run.yaml",
     {"model": {"model_config": {"type": "LlamaConfig"}}}, yaml.safe_dump, ": "),
    ("hf_config", "hf-config", "config.json", {"model_type": "llama", "hidden_size": 8}, json.dumps, ": "),
    ("training_arguments", "training-arguments", "args.json",
     {"learning_rate": 1.0, "max_steps": 3, "output_dir": "x", "weight_decay": 0.1, "save_steps": 1}, json.dumps, ": "),
    ("deepspeed", "deepspeed-json", "ds.json", {"zero_optimization": {"stage": 1}}, json.dumps, ": "),
    ("accelerate", "accelerate-yaml", "acc.yaml",
     {"distributed_type": "FSDP", "num_processes": 2}, yaml.safe_dump, ": "),
    ("torchtitan", "torchtitan-toml", "job.toml",
     {"training": {"steps": 3}, "model": {"name": "llama3"}}, lambda tree: toml(tree), " = "),
]  # fmt: skip


def toml(tree: dict[str, Any]) -> str:
    tops = [f"{key} = {json.dumps(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for key, value in tree.items():
        if isinstance(value, dict):
            tops.append(f"[{key}]")
            tops += [f"{path} = {json.dumps(leaf(value, path))}" for path in leaves(value)]
    return "\n".join(tops) + "\n"


def leaf(tree: dict[str, Any], path: str) -> Any:
    for part in path.split("."):
        tree = tree[part]
    return tree


@pytest.mark.parametrize(("name", "kind", "file", "base", "dump", "between"), FILES, ids=[entry[0] for entry in FILES])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_key_of_a_file_is_told(
    name: str,
    kind: str,
    file: str,
    base: dict[str, Any],
    dump: Callable[[dict[str, Any]], str],
    between: str,
    data: st.DataObject,
) -> None:
    drawn = data.draw(st.dictionaries(keys_of(name, plain=False), SCALAR, max_size=12))
    tree = nested({**drawn, **{key: leaf(base, key) for key in leaves(base)}})

    found = in_file(file, dump(tree))

    assert found.kinds == (kind,)
    assert_all_is_there(found, [f"{path}{between}" for path in leaves(tree)])


@settings(max_examples=100, deadline=None)
@given(
    flags=st.lists(st.tuples(keys_of("megatron", plain=True), SCALAR), min_size=1, max_size=10), style=st.integers(0, 3)
)
def test_every_flag_of_a_script_is_told(flags: list[tuple[str, Any]], style: int) -> None:
    words = [f"--{key.replace('_', '-')} {shlex.quote(str(value))}" for key, value in flags]
    if style == 0:
        text = "python pretrain_gpt.py " + " \\\n  ".join(words)
    elif style == 1:
        text = "ARGS=(\n" + "\n".join(words) + '\n)\ntorchrun --nproc_per_node 2 pretrain_gpt.py "${ARGS[@]}"'
    elif style == 2:
        text = "".join(f"V{i}={word.partition(' ')[2]}\n" for i, word in enumerate(words)) + "python pretrain_gpt.py "
        text += " ".join(f'{word.partition(" ")[0]} "$V{i}"' for i, word in enumerate(words))
    else:
        text = f"run() {{ python pretrain_gpt.py $@; }}\nrun {' '.join(word.replace(chr(39), '') for word in words)}"

    found = in_file("train.sh", text)

    assert_all_is_there(found, [word.partition(" ")[0] for word in words])


@settings(max_examples=60, deadline=None)
@given(values=st.dictionaries(keys_of("megatron", plain=True), st.one_of(IN_A_LOG, st.none()), min_size=1, max_size=12))
def test_every_argument_of_a_log_and_a_checkpoint_is_told(values: dict[str, Any]) -> None:
    lines = [f"  {key} {'.' * (48 - len(key))} {value}" for key, value in values.items()]
    block = "\n".join(["-" * 24 + " arguments " + "-" * 24, *lines, "-" * 20 + " end of arguments " + "-" * 21])

    log = in_file("train.log", block)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model_optim_rng.pt"
        torch.save({"args": argparse.Namespace(**values)}, path)
        checkpoint = read([path])

    assert_all_is_there(log, [f"{key} {value}" for key, value in values.items()])
    assert_all_is_there(checkpoint, [f"{key}={value}" for key, value in values.items()])
    assert {key: setting.value for key, setting in log.settings.items()} == {
        key: setting.value for key, setting in checkpoint.settings.items()
    }


def test_what_a_later_file_takes_the_place_of_is_told_too() -> None:
    paths = [SAMPLES / "transformers" / "training_args.json", SAMPLES / "deepspeed" / "fp16.json"]

    together = read(paths)

    for path in paths:
        alone = [
            setting.spelled
            for setting in listed(read([path]))
            if setting.spelled and not (setting.assumed or setting.derived)
        ]
        told = "\n".join(setting.spelled for setting in listed(together))
        assert [spelled for spelled in alone if spelled not in told] == []


def test_every_sample_tells_all_of_its_lines() -> None:
    for path in sorted((SAMPLES / "mindformers").iterdir()):
        tree = yaml.safe_load(path.read_text())

        found = read([path])

        told = "\n".join(setting.spelled for setting in listed(found))
        assert [key for key in leaves(tree) if key not in told and f"{key}[" not in told] == []
