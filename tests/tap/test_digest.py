"""Equal bits have equal digests, any other bits have others, however the tensor lies in memory."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.batch_numbers import LENGTH, POWER, ROW, signed
from hypocenter.tap import digest as module
from hypocenter.tap.digest import digests, to_host

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.uint8,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64, torch.complex128,
]  # fmt: skip
SIZES = st.one_of(
    st.integers(1, 40),
    st.sampled_from([module.SMALL * 8 - 1, module.SMALL * 8, module.SMALL * 8 + 1, ROW * 8, ROW * 8 + 3]),
)


def one(tensor: torch.Tensor) -> int | None:
    return to_host(digests([tensor]))[0]


def of_bytes(raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    size = torch.empty((), dtype=dtype).element_size()
    raw = raw[: max(1, raw.numel() // size) * size] if raw.numel() >= size else raw.new_zeros(size)
    return (raw % 2).view(torch.bool) if dtype is torch.bool else raw.view(dtype)


def reference(tensor: torch.Tensor) -> int:
    """The formula of the module's docstring in plain integers."""
    raw = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())
    filled = raw + b"\0" * (-len(raw) % 8)
    low, high = (keys.tolist() for keys in module._keys(torch.device("cpu")))
    words = [int.from_bytes(filled[i : i + 8], "little", signed=True) for i in range(0, len(filled), 8)]
    total = 0
    for first in range(0, len(words), ROW):
        row = words[first : first + ROW]
        inner = sum(w * low[j] + (w >> 32) * high[j] for j, w in enumerate(row))
        total = total * POWER + inner
    return signed(total + LENGTH * len(raw))


@settings(max_examples=40, deadline=None)
@given(size=SIZES, seed=st.integers(0, 1000), dtype=st.sampled_from(DTYPES))
def test_follows_the_formula(size: int, seed: int, dtype: torch.dtype) -> None:
    tensor = of_bytes(torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(seed)).byte(), dtype)

    assert one(tensor) == reference(tensor)


@settings(max_examples=200, deadline=None)
@given(size=SIZES, seed=st.integers(0, 1000), data=st.data())
def test_any_one_bit_changes_it(size: int, seed: int, data: st.DataObject) -> None:
    raw = torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(seed)).byte()
    other = raw.clone()
    other[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))

    a, b = to_host(digests([raw, other]))

    assert a != b


@settings(max_examples=60, deadline=None)
@given(size=st.integers(2, 300), data=st.data())
def test_two_signs_or_two_places_change_it(size: int, data: st.DataObject) -> None:
    values = torch.arange(1, size + 1, dtype=torch.float32)
    i, j = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2, unique=True))
    turned, swapped = values.clone(), values.clone()
    turned[[i, j]] *= -1
    swapped[[i, j]] = values[[j, i]]

    found = to_host(digests([values, turned, swapped]))

    assert len(set(found)) == 3


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=4), offset=st.integers(0, 9), dtype=st.sampled_from(DTYPES)
)
def test_memory_does_not_matter(shape: list[int], offset: int, dtype: torch.dtype) -> None:
    size = torch.empty((), dtype=dtype).element_size()
    n = math.prod(shape)
    flat = of_bytes(torch.randint(0, 256, ((n + offset) * size,)).byte(), dtype)[-n:]
    values = flat.view(shape)
    turned = values.mT.contiguous().mT if values.ndim > 1 else values

    assert one(values) == one(values.clone()) == one(turned)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int8])
def test_large_tensors_in_any_memory_order(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 4)
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 256, ((3 * 411 * 1001 + 1) * size,), generator=torch.Generator().manual_seed(0)).byte()
    flat = raw.view(dtype)
    values = flat[1:].view(3, 411, 1001)  # starts off a word

    expected = one(values.clone())

    assert one(values) == expected
    assert one(values.permute(2, 1, 0).contiguous().permute(2, 1, 0)) == expected
    assert one(values.mT.contiguous().mT) == expected


def test_rows_together_as_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What devices do, done on the CPU."""
    words = torch.randint(-(2**62), 2**62, (ROW * 11 + 5,))
    low, high = module._keys(words.device)

    class Elsewhere(torch.Tensor):
        device = torch.device("cuda:0")  # type: ignore[assignment]

    monkeypatch.setattr(module, "_powers", lambda _: torch.tensor(
        [signed(pow(POWER, i, 1 << 64)) for i in reversed(range(module.ROWS_AT_ONCE))]))  # fmt: skip
    together = module._add_rows(None, words.as_subclass(Elsewhere), low, high)
    twice = module._add_rows(
        module._add_rows(None, words[: 7 * ROW].as_subclass(Elsewhere), low, high),
        words[7 * ROW :].as_subclass(Elsewhere), low, high,
    )  # fmt: skip

    assert int(together) == int(twice) == int(module._add_rows(None, words, low, high))


def test_neither_zeros_nor_nans_are_all_alike() -> None:
    zeros = torch.tensor([0.0, -0.0])
    nans = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)

    found = to_host(digests([zeros[:1], zeros[1:], nans[:1], nans[1:], torch.zeros(2), torch.zeros(0)]))

    assert len(set(found)) == 6
    assert found[-1] is None


def test_what_has_no_values() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(4)
    kinds: list[Any] = [torch.empty(3, device="meta"), fake, torch.ones(3).to_sparse(), torch.empty(0, 4)]

    assert digests(kinds) == [None] * 4


def test_views_that_only_promise_to_negate_or_conjugate() -> None:
    values = torch.randn(50, dtype=torch.complex64)

    assert one(values.conj()) == one(values.conj().resolve_conj()) != one(values)
    assert one(values.conj().imag) == one(-values.imag)


def test_many_packed_as_each_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(int(n), generator=generator) for n in torch.randint(1, 4000, (300,), generator=generator)]

    together = to_host(digests(tensors))

    assert together == [one(tensor) for tensor in tensors]
    assert len(set(together)) == 300


def test_an_expanded_tensor_is_its_values() -> None:
    small, large = torch.tensor(1.5).expand(32), torch.tensor(1.5).expand(5, 70_000)

    assert one(small) == one(small.clone())
    assert one(large) == one(large.clone())
