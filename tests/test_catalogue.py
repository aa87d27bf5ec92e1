"""A file that is put into the folder of a catalogue is found there: nothing else is edited."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hypocenter
from hypocenter.catalogue import Catalogue, having

ROOT = Path(hypocenter.__file__).parent


def catalogues() -> Iterator[tuple[str, str]]:
    """(module, name) of all that the source makes."""
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body if "Catalogue[" in text else ():
            if isinstance(node, ast.AnnAssign) and "Catalogue[" in ast.unparse(node.annotation) and node.value:
                module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
                yield module, ast.unparse(node.target)


ALL = list(catalogues())


@pytest.mark.parametrize(("module", "name"), ALL, ids=[f"{module}.{name}" for module, name in ALL])
def test_a_new_file_is_found(module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = importlib.import_module(module)
    real: Catalogue[object] = getattr(owner, name)
    entry = next(iter(real.entries().values()))
    folder = importlib.import_module(real.package)
    like = next(one for one in real.names() if real._entry is None or one in real.entries())
    source = f"from {real.package}.{like} import *\n"
    if real._entry is None:
        source = f"import sys\nowner = sys.modules[{module!r}]\nowner.{name}.register('added_file', owner.ENTRY)\n"
    (tmp_path / "added_file.py").write_text(source)
    fresh: Catalogue[object] = Catalogue(real.package, entry=real._entry)
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    monkeypatch.setattr(owner, name, fresh)
    monkeypatch.setattr(owner, "ENTRY", entry, raising=False)

    found = fresh.entries()
    sys.modules.pop(f"{real.package}.added_file", None)

    assert "added_file" in fresh.names()
    assert "added_file" in found


def test_no_catalogue_is_left_out() -> None:
    assert len(ALL) >= 15


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "some_catalogue"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "some_catalogue"]:
        del sys.modules[name]


def test_entries_state_their_order_themselves(package: Path) -> None:
    for name, text in {"a": "order = 2\nlook = 'a'", "b": "order = 1\nlook = 'b'", "c": "look = 'c'", "d": ""}.items():
        (package / f"{name}.py").write_text(text)

    found = Catalogue[object]("some_catalogue", entry=having("look"))

    assert [entry.look for entry in found.in_order()] == ["b", "a", "c"]  # type: ignore[attr-defined]


def test_one_is_had_without_the_others(package: Path) -> None:
    (package / "good.py").write_text("look = 1")
    (package / "bad.py").write_text("raise RuntimeError('damaged')")
    found = Catalogue[object]("some_catalogue", entry=having("look"))

    assert found.get("good") is sys.modules["some_catalogue.good"]
    with pytest.raises(RuntimeError, match="damaged"):
        found.load()  # no third party can be to blame


def test_what_a_third_party_may_have_broken_is_listed(package: Path) -> None:
    (package / "bad.py").write_text("raise RuntimeError('damaged')")
    found = Catalogue[object]("some_catalogue", "some.group", having("look"))

    assert (found.entries(), [broken.name for broken in found.broken]) == ({}, ["bad"])
