"""Weights of the torch GPT converted for its MindSpore port and back by names and shapes alone: bits and logits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from two_frameworks import MINDSPORE, PYTHON, TORCH, Pair, convert, prepare, started

from hypocenter.compare.weights.catalogue import read_checkpoint

pytestmark = pytest.mark.skipif(not PYTHON, reason="no MindSpore here, and MINDSPORE_PYTHON names none")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return prepare(tmp_path_factory.mktemp("pair"))


def _bits(path: Path) -> dict[str, bytes]:
    tensors = read_checkpoint(path).tensors
    return {name: t.read(tuple((0, n) for n in t.shape)).tobytes() for name, t in tensors.items()}


def _logits(pair: Pair, python: str, program: Path, weights: Path) -> Any:
    started(python, program, "--weights", weights, "--tokens", pair.tokens, "--logits", pair.folder / "logits.npy")
    return np.load(pair.folder / "logits.npy").astype(np.float64)


def _exact(pair: Pair) -> Any:
    """The logits of the first batch, computed in float64."""
    import gpt_torch  # pyright: ignore[reportMissingImports]
    from safetensors.torch import load_file

    model = gpt_torch.GPT()
    model.load_state_dict(load_file(pair.weights))
    batch = next(gpt_torch.batches(str(pair.tokens), 1, size=gpt_torch.SIZE, length=gpt_torch.LENGTH))
    with torch.no_grad():
        return model.double()(*(torch.from_numpy(part).long() for part in batch))[0].numpy()


def _rms(error: Any) -> float:
    return float(np.sqrt(np.mean(np.square(error))))


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ckpt", "safetensors"])
def test_the_port_gives_the_logits_of_torch_with_weights_that_we_convert(
    pair: Pair, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(TORCH.parent))
    converted = pair.folder / f"again.{kind}"
    convert(pair.weights, like=pair.like, to=converted)

    got = _logits(pair, PYTHON, MINDSPORE, converted)

    exact = _exact(pair)
    floor = _rms(_logits(pair, sys.executable, TORCH, pair.weights) - exact)
    assert 0 < floor < 1e-6
    assert _rms(got - exact) < 2 * floor


def test_weights_come_back_to_the_bit(pair: Pair) -> None:
    convert(pair.converted, like=pair.weights, to=pair.folder / "back.safetensors")
    convert(pair.folder / "back.safetensors", like=pair.like, to=pair.folder / "forth.ckpt")

    assert _bits(pair.folder / "back.safetensors") == _bits(pair.weights)
    assert _bits(pair.folder / "forth.ckpt") == _bits(pair.converted)
