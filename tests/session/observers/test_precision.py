"""Where forward is not what exact arithmetic gives, the operator is named; usual rounding is left alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run
from hypocenter.replay.engine import Replayer
from hypocenter.replay.shadow import Shadow
from hypocenter.session.observers import precision
from tests.session.observers.test_laws import findings

N_STEPS = 3
LONG = 1024  # positions: bfloat16 has all whole numbers up to 256


class Turned(nn.Module):
    """Attention with rotary positions, whose angles are in some format."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(50, 16), nn.Linear(16, 48), nn.Linear(16, 50)
        self.dtype = dtype

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.qkv(self.embed(tokens)).chunk(3, -1)
        query, key = self.turn(query)[:, None], self.turn(key)[:, None]
        mixed = functional.scaled_dot_product_attention(query, key, value[:, None], is_causal=True)
        return self.out(mixed[:, 0])

    def turn(self, x: Tensor) -> Tensor:
        rates = (10000.0 ** (-torch.arange(0, 16, 2) / 16)).to(self.dtype)
        angles = torch.arange(x.shape[1]).to(self.dtype)[:, None] * rates
        cos, sin = angles.cos(), angles.sin()
        first, second = x[..., ::2], x[..., 1::2]
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)


class Averaged(nn.Module):
    """The mean over time, as a sum in some format."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 16), nn.Linear(16, 1)
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.sigmoid(self.up(x)).to(self.dtype)
        total = torch.zeros_like(parts[:, 0])
        for part in parts.unbind(1):
            total = total + part
        return self.down((total / parts.shape[1]).float())


class Normed(nn.Module):
    """A norm whose variance is written in one of two ways; what it is given lies far from 0."""

    def __init__(self, *, is_difference: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 32), nn.Linear(32, 1)
        nn.init.constant_(self.up.bias, 3000.0)
        self.is_difference = is_difference

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        mean = x.mean(-1, keepdim=True)
        if self.is_difference:
            variance = ((x * x).mean(-1, keepdim=True) - mean**2).clamp(min=0.0)
        else:
            variance = (x - mean).square().mean(-1, keepdim=True)
        return self.down((x - mean) * (variance + 1e-5).rsqrt())


class Pixels(nn.Module):
    """Takes the mean of pixels off, in some format."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.out = nn.Linear(64, 1)
        self.dtype = dtype

    def forward(self, pixels: Tensor) -> Tensor:
        return self.out((pixels.to(self.dtype) - 128).float() / 64)


class Scaled(nn.Module):
    """A layer with a scale that is 1 but for rounding: DoRA, as peft writes it, before its first update."""

    def __init__(self, *, is_added: bool) -> None:
        super().__init__()
        self.up, self.down, self.is_added = nn.Linear(48, 64), nn.Linear(64, 1), is_added
        self.size = nn.Parameter(self.up.weight.detach().norm(dim=1) * (1 + 1e-9))

    def forward(self, x: Tensor) -> Tensor:
        base = self.up(x)
        rest = (self.size / (self.up.weight.detach() * 1.1).norm(dim=1) * 1.1 - 1) * base
        if self.is_added:
            return self.down(base + rest)
        return self.down(functional.layer_norm(rest, (64,), eps=0.0))


class Sure(nn.Module):
    """Gives its own loss, a small difference of larger numbers once it is sure."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 8, bias=False)
        nn.init.constant_(self.out.weight, 0.0)
        with torch.no_grad():
            self.out.weight[0] = 8.0

    def forward(self, x: Tensor) -> Tensor:
        logits = self.out(x)
        return (logits.logsumexp(-1) - logits[:, 0]).float()


def tokens() -> Tensor:
    return torch.randint(0, 50, (2, LONG))


def told(model: nn.Module, batch: Callable[[], Tensor], out: Path, *, autocast: bool = False) -> list[Finding]:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        for _ in range(N_STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(batch()).float().square().mean()
            loss.backward()
            optimizer.step()
    return findings(out)


FAULTS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], str]] = {
    "positions": (lambda: Turned(torch.bfloat16), tokens, "aten.cos"),
    "a long sum": (lambda: Averaged(torch.bfloat16), lambda: torch.randn(4, 700, 4), "aten.add"),
    "a difference": (lambda: Normed(is_difference=True), lambda: torch.randn(32, 4), "aten.sub"),
    "pixels": (lambda: Pixels(torch.uint8), lambda: torch.randint(0, 256, (8, 64)), "aten.sub"),
    "a scale that is 1": (lambda: Scaled(is_added=False), lambda: torch.randn(8, 48), "aten.sub"),
}
TWINS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "positions": (lambda: Turned(torch.float32), tokens),
    "a long sum": (lambda: Averaged(torch.float32), lambda: torch.randn(4, 700, 4)),
    "a difference": (lambda: Normed(is_difference=False), lambda: torch.randn(32, 4)),
    "pixels": (lambda: Pixels(torch.int16), lambda: torch.randint(0, 256, (8, 64))),
    "a loss near zero": (Sure, lambda: torch.rand(16, 4) + 0.5),
    "a scale that is 1": (lambda: Scaled(is_added=True), lambda: torch.randn(8, 48)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_what_is_rounding_for_the_most_part_is_named(name: str, tmp_path: Path) -> None:
    make, batch, op = FAULTS[name]

    found = told(make(), batch, tmp_path)

    assert [(f.code, f.step) for f in found] == [("HC236", 0)]
    assert (found[0].op or "").startswith(op)
    assert found[0].source is not None
    assert found[0].source.file.endswith("test_precision.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_usual_rounding_is_not(name: str, tmp_path: Path) -> None:
    make, batch = TWINS[name]

    assert told(make(), batch, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["positions", "a long sum", "pixels", "a loss near zero"])
def test_that_of_autocast_is_not(name: str, tmp_path: Path) -> None:
    make, batch = TWINS[name]

    assert told(make(), batch, tmp_path, autocast=True) == []


def test_a_norm_is_rounding_of_what_bfloat16_gives_it_far_from_zero(tmp_path: Path) -> None:
    """Autocast makes it of 3000 and more: bfloat16 has every 16th number there."""
    found = told(Normed(is_difference=False), lambda: torch.randn(32, 4), tmp_path, autocast=True)

    assert [each.code for each in found] == ["HC236"]


SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
T5: dict[str, Any] = {
    "vocab_size": 50,
    "d_model": 32,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 2,
    "d_kv": 16,
    "decoder_start_token_id": 0,
}
REAL: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)),
    "mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4)
    ),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SMALL)),
    "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", REAL)
def test_real_models_in_short_formats_are_exact_enough(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = REAL[name]().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for _ in range(N_STEPS):
            optimizer.zero_grad()
            ids = torch.randint(1, 50, (2, 24))
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()

    assert [each for each in findings(tmp_path) if each.code == "HC236"] == []


def test_training_is_the_same_to_the_bit(tmp_path: Path) -> None:
    def trained(audit: str) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path / audit), audit=audit):
            for _ in range(12):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(torch.randn(8, 4)).float().square().mean()
                loss.backward()
                optimizer.step()
        return [*model.state_dict().values(), torch.rand(4)]

    assert all(map(torch.equal, trained("never"), trained("auto")))


@pytest.mark.parametrize("has_bias", [True, False])
def test_what_training_has_brought_to_zero_is_not(has_bias: bool, tmp_path: Path) -> None:
    """The model's weights undo each other: what is left of its output is rounding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 16), nn.Linear(16, 4, bias=has_bias), nn.Linear(4, 4))
    with torch.no_grad():
        inner = torch.randn(8, 16) * 100.0
        weight = torch.randn(4, 16)
        model[1].weight.zero_()
        model[1].bias.copy_(inner[0])
        if has_bias:
            model[2].bias.copy_(-(weight @ inner[0]))
        else:
            exact, given = weight.double(), inner[0].double()
            weight = (exact - torch.outer(exact @ given, given) / given.square().sum()).float()  # at right angles to it
        model[2].weight.copy_(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with hypocenter.watch(out=str(tmp_path / "run")):
        for _ in range(N_STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    assert findings(tmp_path / "run") == []


def test_a_loss_near_zero_is_none_of_it_with_checkpoints_either(tmp_path: Path) -> None:
    """What backward recomputes uses parameters after the loss."""

    class Checkpointed(Sure):
        def forward(self, x: Tensor) -> Tensor:
            logits = checkpoint(self.out, x, use_reentrant=False)
            return (logits.logsumexp(-1) - logits[:, 0]).float()

    assert told(Checkpointed(), lambda: torch.rand(16, 4) + 0.5, tmp_path, autocast=True) == []


def test_code_that_cannot_be_done_again_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Replayer.run

    def failing(self: Replayer, *args: Any, mode: Any = None, **options: Any) -> Any:
        if isinstance(mode, Shadow):
            raise AttributeError("of the user's own code")
        return run(self, *args, mode=mode, **options)

    monkeypatch.setattr(Replayer, "run", failing)

    assert told(Averaged(torch.bfloat16), lambda: torch.randn(4, 700, 4), tmp_path) == []
    assert diagnose(open_run(tmp_path)).status == "healthy"


@pytest.mark.parametrize(("peak", "expected"), [(0, 250), (100, 100), (900, 250)])
def test_a_shadow_takes_a_share_of_what_is_free_and_no_more_than_the_step(monkeypatch, peak, expected):
    monkeypatch.setattr(precision, "free_bytes", lambda _: 1000)
    monkeypatch.setattr(precision, "peak_bytes", lambda _: peak)

    assert precision._room(torch.device("cpu")) == expected
