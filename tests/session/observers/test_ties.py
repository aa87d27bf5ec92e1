"""What was one parameter and is two copies since a model was loaded is named; a model of another kind is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hypocenter
from tests.session.observers.test_laws import findings

N_STEPS, AT = 8, 4


class Net(nn.Module):
    def __init__(self, *, is_tied: bool = True, has_flag: bool = False) -> None:
        super().__init__()
        if has_flag:
            self.is_tied = is_tied
        self.tok, self.head = nn.Embedding(12, 6), nn.Linear(6, 12, bias=False)
        if is_tied:
            self.head.weight = self.tok.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.tok(ids))


def tied_again(model: Net) -> Net:
    found = Net()
    found.load_state_dict(model.state_dict())
    return found


def never_tied_again(model: Net) -> Net:
    found = Net(is_tied=False)
    found.load_state_dict(model.state_dict())
    return found


def assigned(model: Net) -> Net:
    found = Net()
    found.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    return found


def untied_in_place(model: Net) -> Net:
    model.head.weight = nn.Parameter(model.tok.weight.detach().clone())
    return model


def untied_by_a_flag(model: Net) -> Net:
    """In two stages, the second one untied on purpose."""
    found = Net(is_tied=False, has_flag=True)
    found.load_state_dict(model.state_dict())
    return found


def begun_anew(model: Net) -> Net:
    return Net(is_tied=False)


def begun_alike(model: Net) -> Net:
    """Another model, untied, whose two weights begin as copies: as those of layers that are cloned."""
    found = Net(is_tied=False)
    found.head.weight.data.copy_(found.tok.weight.data)
    return found


def the_same(model: Net) -> Net:
    return model


@pytest.mark.parametrize(
    ("again", "n"),
    [
        (never_tied_again, 1),
        (assigned, 1),
        (tied_again, 0),
        (begun_anew, 0),
        (begun_alike, 0),
        (the_same, 0),
    ],
)
def test_a_tie_that_is_not_made_again(again: Callable[[Net], Net], n: int, tmp_path: Path) -> None:
    assert told(tmp_path, Net(), again) == [("HC265", "warning", AT, "head.weight")] * n


@pytest.mark.parametrize("again", [untied_in_place, untied_by_a_flag])
def test_a_tie_that_is_cut_on_purpose_is_a_note(again: Callable[[Net], Net], tmp_path: Path) -> None:
    assert told(tmp_path, Net(has_flag=True), again) == [("HC265", "note", AT, "head.weight")]


def test_what_was_never_tied(tmp_path: Path) -> None:
    assert not told(tmp_path, untied_in_place(Net()), never_tied_again)


def told(out: Path, model: Net, again: Callable[[Net], Net]) -> list[tuple[str, str, int, str]]:
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        for step in range(N_STEPS):
            if step == AT:
                model = again(model)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            ids = torch.randint(0, 12, (8, 5))
            optimizer.zero_grad()
            functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimizer.step()
    return [(f.code, f.severity, f.step, f.site) for f in findings(out) if f.code == "HC265"]


def grown(model: Any) -> None:
    """The embedding is made larger by hand, and the head is a copy of it."""
    more = torch.cat([model.transformer.wte.weight.data, torch.zeros(2, 8)])
    model.transformer.wte = nn.Embedding.from_pretrained(more, freeze=False)
    model.lm_head = nn.Linear(8, 14, bias=False)
    model.lm_head.weight.data.copy_(more)


def said_to_be_two(model: Any) -> None:
    grown(model)
    model.config.tie_word_embeddings = False


def another_head(model: Any) -> None:
    model.lm_head = nn.Linear(8, 3, bias=False)


def frozen_embedding(model: Any) -> None:
    grown(model)
    model.transformer.wte.requires_grad_(False)


@pytest.mark.parametrize(
    ("change", "is_said", "n"),
    [
        (grown, True, 1),
        (grown, False, 0),
        (lambda model: model.resize_token_embeddings(14, mean_resizing=False), True, 0),
        (said_to_be_two, True, 0),
        (another_head, True, 0),
        (frozen_embedding, True, 0),
    ],
)
def test_a_tie_that_only_the_config_declares(
    change: Callable[[Any], None], is_said: bool, n: int, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(tie_word_embeddings=is_said, **sizes))
    change(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for _ in range(2):
            optimizer.zero_grad()
            model(input_ids=torch.randint(0, 3, (4, 6))).logits.square().mean().backward()
            optimizer.step()

    told = [(f.code, f.severity, f.step, f.site) for f in findings(tmp_path) if f.code == "HC265"]
    assert told == [("HC265", "warning", 0, "lm_head.weight")] * n
