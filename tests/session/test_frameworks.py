"""Adapters are attached when their framework is there in full, once, and a failing one leaves torch's view."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from hypocenter.session import frameworks
from hypocenter.session.frameworks import Frameworks


class Adapter(ModuleType):
    needs = "a_framework_of_nobody"

    def __init__(self, error=None):
        super().__init__("adapter")
        self.calls, self._error = [], error

    def attach(self, door):
        if self._error:
            raise self._error
        self.calls.append("attach")
        return lambda: self.calls.append("undo")


@pytest.fixture
def framework(monkeypatch):
    """The framework, as if its import were under way."""
    module = ModuleType(Adapter.needs)
    module.__spec__ = ModuleSpec(Adapter.needs, None)
    module.__spec__._initializing = True
    monkeypatch.setitem(sys.modules, Adapter.needs, module)
    return module


def watched(monkeypatch, adapter):
    said = []
    monkeypatch.setattr(frameworks, "adapters", lambda: iter([adapter]))
    return Frameworks(SimpleNamespace(warn=said.append)), said


def test_a_framework_that_is_half_imported_is_waited_for(monkeypatch, framework):
    adapter = Adapter()
    found, _ = watched(monkeypatch, adapter)

    undo = found.attach()
    assert adapter.calls == []

    framework.__spec__._initializing = False
    found.look()
    found.look()
    undo()

    assert adapter.calls == ["attach", "undo"]


def test_an_adapter_that_fails_says_so_and_is_let_be(monkeypatch, framework):
    framework.__spec__._initializing = False
    found, said = watched(monkeypatch, Adapter(ValueError("another version")))

    found.attach()()

    assert len(said) == 1
    assert "another version" in said[0]
