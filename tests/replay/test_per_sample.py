"""Losses and gradients of single samples: all in one run, and one after the other."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hypocenter.config import Config
from hypocenter.replay.engine import Replayer
from hypocenter.session.recording import Session

ROWS = 6


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(20, 16), nn.Linear(16, 48), nn.Linear(16, 20)

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(x + F.scaled_dot_product_attention(q, k, v, is_causal=True))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)
        self.second, self.head = nn.Conv2d(8, 8, 3, stride=2), nn.Linear(8, 5)

    def forward(self, images):
        h = F.relu(self.norm(self.first(images)))
        return self.head(F.silu(self.second(h)).mean((2, 3)))


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, nodes, edges):
        return self.second(edges @ torch.relu(self.first(edges @ nodes))).mean(1).squeeze(-1)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.head = kind(8, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1]).squeeze(-1)


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(8, 8), nn.Linear(4, 8)

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, -1)
        return self.decode(mean + log_variance.mul(0.5).exp()), mean, log_variance


class Experts(nn.Module):
    """Dense mixing of experts."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(8, 3), nn.Parameter(torch.randn(3, 8, 8) / 3)

    def forward(self, x):
        return torch.einsum("be,eij,bj->bi", self.router(x).softmax(-1), self.experts, x)


def tokens():
    return torch.randint(0, 20, (ROWS, 7))


def next_token(logits, labels):
    """With labels laid flat."""
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def from_config(name, **how):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, bos_token_id=1, eos_token_id=2, attn_implementation="eager", **how,
    )  # fmt: skip
    return config, transformers


def gpt2():
    config, transformers = from_config("GPT2", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = transformers.GPT2LMHeadModel(config)
    return [model], lambda x, y: next_token(model(input_ids=x).logits, y), tokens(), tokens()


def llama():
    config, transformers = from_config("Llama")
    model = transformers.LlamaForCausalLM(config)
    return [model], lambda x, y: next_token(model(input_ids=x).logits, y), tokens(), tokens()


def bert():
    config, transformers = from_config("Bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = transformers.BertForSequenceClassification(config)
    return [model], lambda x, y: F.cross_entropy(model(input_ids=x).logits, y), tokens(), torch.randint(0, 2, (ROWS,))


def vit():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=5, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    return (
        [model],
        lambda x, y: F.cross_entropy(model(pixel_values=x).logits, y),
        torch.randn(ROWS, 3, 8, 8),
        torch.randint(0, 5, (ROWS,)),
    )


def mlp():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    return [model], lambda x, y: F.mse_loss(model(x), y), torch.randn(ROWS, 8), torch.randn(ROWS, 4)


def attention():
    model = Attention()
    return [model], lambda x, y: next_token(model(x), y), tokens(), tokens()


def convolutions():
    model = Convolutions()
    return (
        [model],
        lambda x, y: F.cross_entropy(model(x), y),
        torch.randn(ROWS, 3, 9, 9),
        torch.randint(0, 5, (ROWS,)),
    )


def graph():
    model, edges = Graph(), torch.rand(ROWS, 5, 5)
    return [model], lambda x, y: F.mse_loss(model(x, edges), y), torch.randn(ROWS, 5, 8), torch.randn(ROWS)


def lstm():
    model = Recurrent(nn.LSTM)
    return [model], lambda x, y: F.mse_loss(model(x), y), torch.randn(ROWS, 5, 8), torch.randn(ROWS)


def vae():
    model = Vae()

    def loss(x, y):
        out, mean, log_variance = model(x)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)
        return (out - y).square().sum(-1).mean() + divergence.mean()

    return [model], loss, torch.randn(ROWS, 8), torch.randn(ROWS, 8)


def experts():
    model = Experts()
    return [model], lambda x, y: F.mse_loss(model(x), y), torch.randn(ROWS, 8), torch.randn(ROWS, 8)


def denoiser():
    model, times = nn.ModuleDict({"time": nn.Embedding(10, 8), "body": nn.Linear(8, 8)}), torch.randint(0, 10, (ROWS,))

    def loss(x, y):
        return F.mse_loss(model["body"](F.silu(x + model["time"](times))), y)

    return list(model.values()), loss, torch.randn(ROWS, 8), torch.randn(ROWS, 8)


def policy():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def loss(x, action):
        return -(model(x).log_softmax(-1).gather(1, action.unsqueeze(1)).squeeze(1) * (action - 1.5)).mean()

    return [model], loss, torch.randn(ROWS, 8), torch.randint(0, 4, (ROWS,))


FAMILIES = [
    mlp, attention, convolutions, graph, lstm, vae, experts, denoiser, policy, gpt2, llama, bert, vit,
]  # fmt: skip


def traced(models, loss, x, y, folder):
    """A step that has been recorded: (replayer, micro-batch, parameters)."""
    session = Session(Config(), folder, owns_run=True)
    for model in models:
        session.names.add_root(model)
    parameters = [p for model in models for p in model.parameters()]
    optimizer = torch.optim.SGD(parameters)
    session.attach()
    loss(x, y).backward()
    session.switch_off("enough seen")
    del optimizer
    return Replayer(session.tape, contextlib.nullcontext), session.tape.microbatches[0], parameters


@pytest.mark.parametrize("family", FAMILIES)
def test_all_at_once_as_one_after_the_other(family, tmp_path):
    torch.manual_seed(0)
    models, loss, x, y = family()
    replayer, microbatch, parameters = traced(models, loss, x, y, tmp_path / "run")
    before = [p.detach().clone() for p in parameters]

    losses, norms = replayer.each_alone(microbatch, parameters, ROWS)

    for row in range(ROWS):
        one = replayer.run(microbatch, parameters, rows=(ROWS, torch.tensor([row])))
        norm = torch.cat([g.flatten() for g in one.grads if g is not None]).double().norm()
        assert losses[row] == pytest.approx(float(one.values[0]), rel=1e-4)
        assert norms[row] == pytest.approx(float(norm), rel=1e-4)
    assert len(set(norms)) == ROWS
    assert all(map(torch.equal, before, parameters))
    assert all(type(p) is nn.Parameter for model in models for p in model.parameters())


class LooksAtValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x):
        return self.body(x) if bool(x.isfinite().all()) else x


@pytest.mark.parametrize(
    "model", [lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), LooksAtValues], ids=["buffers", "values"]
)
def test_what_cannot_be_vectorised_says_so(model, tmp_path):
    torch.manual_seed(0)
    model = model()
    replayer, microbatch, parameters = traced(
        [model], lambda x, y: F.mse_loss(model(x), y), torch.randn(ROWS, 8), torch.randn(ROWS, 8), tmp_path / "run"
    )
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}

    with pytest.raises((RuntimeError, ValueError)):
        replayer.each_alone(microbatch, parameters, ROWS)

    assert all(torch.equal(buffer, kept[name]) for name, buffer in model.named_buffers())
    assert all(type(p) is nn.Parameter for p in model.parameters())
