"""Whether compiled code replays graphs, whose results share their memory."""

import sys
from types import SimpleNamespace

import pytest

from hypocenter.capturing import reuses_memory

TREES = "torch._inductor.cudagraph_trees"


@pytest.mark.parametrize(("containers", "expected"), [({0: object()}, True), ({}, False), (None, False)])
def test_graph_trees_of_inductor_are_seen_once_one_was_made(monkeypatch, containers, expected):
    local = SimpleNamespace() if containers is None else SimpleNamespace(tree_manager_containers=containers)
    monkeypatch.setitem(sys.modules, TREES, SimpleNamespace(local=local))

    assert reuses_memory() is expected


def test_where_inductor_was_never_loaded_there_are_none(monkeypatch):
    monkeypatch.delitem(sys.modules, TREES, raising=False)

    assert not reuses_memory()
