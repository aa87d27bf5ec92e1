"""tap/tree.py: every kind of nested value, there and back."""

from __future__ import annotations

import dataclasses
import typing
from collections import OrderedDict, UserDict, defaultdict, deque
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.tap.tree import flatten, replace_tensors, tensors
from hypocenter.tap.walking import MAX_TENSORS


class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: object


@dataclasses.dataclass(frozen=True)
class Frozen:
    hidden: torch.Tensor
    extra: object = None


@dataclasses.dataclass(slots=True)
class Slotted:
    hidden: torch.Tensor
    extra: object = None


class Layer:
    def __init__(self) -> None:
        self.keys, self.values = torch.ones(2), torch.zeros(2)


class Cache:
    def __init__(self) -> None:
        self.layers = [Layer(), Layer()]
        self.owner = self  # a cycle


def ports(value: object) -> list[str]:
    return [port for port, _ in tensors(value)]


def test_a_bare_tensor_has_no_suffix() -> None:
    assert ports(torch.ones(1)) == [""]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((torch.ones(1), None, [torch.ones(1)]), ["[0]", "[2][0]"]),
        ({"logits": torch.ones(1), 3: {"k": torch.ones(1)}}, ["[logits]", "[3][k]"]),
        (Pair(torch.ones(1), 2), ["[0]"]),
        (Frozen(torch.ones(1), (torch.ones(1),)), ["[hidden]", "[extra][0]"]),
        (Slotted(torch.ones(1)), ["[hidden]"]),
        (UserDict(a=torch.ones(1)), ["[a]"]),
        (SimpleNamespace(a=torch.ones(1), b="no"), ["[a]"]),
        (deque([torch.ones(1)]), ["[0]"]),
        (torch.ones(3, 2).max(dim=0), ["[0]", "[1]"]),
        (Cache(), ["[layers][0][keys]", "[layers][0][values]", "[layers][1][keys]", "[layers][1][values]"]),
        (None, []),
        ("text", []),
        (torch.nn.Linear(1, 1), []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_ports_name_where_the_tensor_sits(value: object, expected: list[str]) -> None:
    assert ports(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        (torch.ones(1), None, [torch.ones(1)]),
        OrderedDict(a=torch.ones(1), b=1),
        defaultdict(list, a=torch.ones(1)),
        Pair(torch.ones(1), 2),
        Frozen(torch.ones(1), (torch.ones(1),)),
        Slotted(torch.ones(1)),
        UserDict(a=torch.ones(1)),
        MappingProxyType({"a": torch.ones(1)}),
        SimpleNamespace(a=torch.ones(1), b="no"),
        deque([torch.ones(1)], maxlen=3),
        torch.ones(3, 2).max(dim=0),
        torch.nn.utils.rnn.pack_sequence([torch.ones(3)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_replacing_keeps_type_and_structure_and_leaves_the_original_alone(value: object) -> None:
    before = list(tensors(value))

    new = replace_tensors(value, lambda t: t + 1)

    assert type(new) is type(value)
    assert ports(new) == [port for port, _ in before]
    assert all(torch.equal(a, b + 1) for (_, a), (_, b) in zip(tensors(new), before, strict=True))
    assert all(a is b for (_, a), (_, b) in zip(tensors(value), before, strict=True))


def test_a_model_output_and_a_real_kv_cache_survive() -> None:
    transformers = pytest.importorskip("transformers")
    outputs = pytest.importorskip("transformers.modeling_outputs")
    cache = transformers.DynamicCache()
    cache.update(torch.ones(1, 1, 2, 3), torch.zeros(1, 1, 2, 3), 0)
    value = outputs.Seq2SeqLMOutput(logits=torch.ones(2), past_key_values=cache, encoder_hidden_states=(torch.ones(1),))

    new = replace_tensors(value, torch.clone)

    assert type(new) is type(value)
    assert type(new.past_key_values) is type(cache)
    assert new.keys() == value.keys()
    assert new.logits is new["logits"]
    assert new.logits is not value.logits
    assert new.past_key_values is not cache
    assert ports(new) == ports(value)
    assert {"[logits]", "[encoder_hidden_states][0]"} < set(ports(value))
    assert len(ports(value)) == 4


def test_what_holds_no_changed_tensor_is_returned_itself() -> None:
    inner, opaque = [1, "a", {"b": 2}], object()
    value = (inner, opaque, torch.ones(1))

    same, new = replace_tensors(value, lambda t: t), replace_tensors(value, torch.clone)

    assert same is value
    assert new[0] is inner
    assert new[1] is opaque


def test_a_tensor_at_two_places_stays_one_tensor() -> None:
    x = torch.ones(1)

    new = replace_tensors({"a": x, "b": [x]}, torch.clone)

    assert new["a"] is new["b"][0]


def test_cycles_depth_and_count_are_bounded() -> None:
    loop: list[object] = [torch.ones(1)]
    loop.append(loop)
    deep: object = torch.ones(1)
    for _ in range(1000):
        deep = [deep]

    assert ports(loop) == ["[0]"]
    assert ports(deep) == []
    assert len(flatten([torch.ones(1)] * (MAX_TENSORS + 5))) == MAX_TENSORS
    assert torch.equal(replace_tensors(loop, lambda t: t + 1)[0], torch.full((1,), 2.0))
    assert replace_tensors(deep, torch.clone) is deep


def test_objects_that_refuse_to_be_read_or_copied_are_left_as_they_are() -> None:
    class Hostile:
        def __init__(self) -> None:
            self.x = torch.ones(1)

        def __copy__(self) -> Hostile:
            raise RuntimeError("no")

    class Broken(dict[str, object]):
        def items(self):
            raise RuntimeError("no")

    hostile, broken = Hostile(), Broken(a=torch.ones(1))

    assert replace_tensors(hostile, torch.clone) is hostile
    assert replace_tensors(broken, torch.clone) is broken
    assert ports(broken) == []


nested = st.recursive(
    st.sampled_from([None, 1, "x", 0.5]) | st.builds(lambda: torch.ones(1)),
    lambda children: (
        st.lists(children, max_size=3)
        | st.tuples(children, children)
        | st.dictionaries(st.text(max_size=3), children, max_size=3)
    ),
    max_leaves=8,
)


@given(nested)
def test_replacing_visits_exactly_the_tensors_that_are_listed(value: object) -> None:
    visited: list[int] = []

    new = replace_tensors(value, lambda t: (visited.append(id(t)), t + 1)[1])

    assert visited == [id(t) for _, t in tensors(value)]
    assert ports(new) == ports(value)
