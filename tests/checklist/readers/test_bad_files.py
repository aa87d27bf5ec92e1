"""Files that are no configuration, damaged or hostile: one clear error, with file, line, reason and what to do."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.checklist.catalogue import READERS
from hypocenter.checklist.checklist import ConfigurationError
from hypocenter.checklist.reading import read
from hypocenter.errors import HypocenterError


def error_of(folder: Path, name: str, content: str | bytes) -> HypocenterError:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(HypocenterError) as caught:
        read([path])
    assert str(path) in caught.value.where
    assert caught.value.why or caught.value.fix
    return caught.value


@pytest.mark.parametrize(
    ("name", "content", "line", "why"),
    [
        ("c.json", '{\n "a": 1,\n "b" 2}', 3, "colon"),
        ("c.json", '{\n "a": 1,\n}', 2, "comma"),
        ("c.json", '{"a": tru}', 1, "no value"),
        ("c.json", '{"a": 1} x', 1, "behind the end"),
        ("c.json", '{"a": [1, 2', 1, "expected"),
        ("c.json", '{\n"a": "x', 2, "nterminated"),
        ("c.json", "[" * 5000, 1, "deep"),
        ("c.json", '{"a": ' + "9" * 10000 + "}", 1, "digit"),
        ("c.yaml", "model:\n  a: [1,\n  b: {\n", 0, ""),
        ("c.yaml", "a: 1\n\tb: 2\n", 2, "token"),
        ("c.toml", "[training]\nsteps = \n", 2, "nvalid"),
    ],
)
def test_a_damaged_file_names_its_line(tmp_path: Path, name: str, content: str, line: int, why: str) -> None:
    error = error_of(tmp_path, name, content)

    assert why in error.why
    assert not line or error.where.endswith(f":{line}")


def test_aliases_that_unfold_without_end(tmp_path: Path) -> None:
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9) if i else '1, 1'}]" for i in range(12)]

    error = error_of(tmp_path, "bomb.yaml", "\n".join(levels))

    assert "unfolds" in error.why


def test_a_python_object_in_yaml_is_not_built(tmp_path: Path) -> None:
    proof = tmp_path / "executed"

    path = tmp_path / "run.yaml"
    path.write_text(
        f"model:\n  model_config: !!python/object/apply:os.system ['touch {proof}']\n  own: !!python/name:os.system\n"
    )

    with contextlib.suppress(HypocenterError):
        read([path])

    assert not proof.exists()


@pytest.mark.parametrize("name", ["x.json", "x.yaml", "x.toml", "x.sh", "x.txt"])
def test_an_empty_file(tmp_path: Path, name: str) -> None:
    assert "empty" in error_of(tmp_path, name, "\n  \n").what


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.txt", "hello"),
        ("x.json", '{"a": 1}'),
        ("x.json", "[1, 2]"),
        ("x.bin", b"\0\1\2"),
        ("x.toml", "a = 1"),
        ("x.yaml", "- 1"),
    ],
)
def test_a_kind_that_nobody_knows_lists_those_that_are(tmp_path: Path, name: str, content: str | bytes) -> None:
    error = error_of(tmp_path, name, content)

    assert all(kind in error.why for kind in READERS.entries())


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read([tmp_path / "none.sh"])

    assert caught.value.where.endswith("none.sh")


def test_no_file_at_all() -> None:
    with pytest.raises(ConfigurationError):
        read([])


def is_read_or_named(path: Path) -> bool:
    """Whether a file is read, or refused by an error that names it."""
    try:
        read([path])
    except HypocenterError as error:
        return path.name in error.where
    return True


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=200), name=st.sampled_from(["a.json", "a.yaml", "a.toml", "a.sh", "a.pt", "a.log"]))
def test_any_bytes(content: bytes, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)

    assert is_read_or_named(path)


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(alphabet="{}[]\":,&*!<-|> \nab1.#'%@", max_size=60),
    name=st.sampled_from(["a.json", "a.yaml", "a.toml"]),
)
def test_any_text(text: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_text(text)

    assert is_read_or_named(path)


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_is_taken_as_the_value_of_a_good_file(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 16, "_name_or_path": text}))

    assert read([path]).settings["model.hidden_size"].value == 16


def test_the_same_key_twice_in_json_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama",\n"hidden_size": 8,\n"hidden_size": 16}')

    found = read([path])

    assert found.settings["model.hidden_size"].value == 16
    assert "config.json:3: hidden_size: 16 takes the place of hidden_size: 8 (config.json:2)" in found.notes


def test_the_same_key_twice_in_yaml_is_told_and_a_merged_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "base: &base {hidden_size: 4, num_layers: 2}\nmodel:\n  model_config:\n    <<: *base\n    hidden_size: 8\n"
        "    num_heads: 2\n    num_heads: 4\n"
    )

    found = read([path])

    assert found.settings["model.hidden_size"].value == 8
    assert found.settings["model.num_layers"].value == 2
    assert found.settings["model.num_attention_heads"].value == 4
    assert [note for note in found.notes if "takes the place" in note] == [
        "run.yaml:7: model.model_config.num_heads: 4 takes the place of model.model_config.num_heads: 2 (run.yaml:6)"
    ]
