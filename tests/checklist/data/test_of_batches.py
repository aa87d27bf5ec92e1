"""The checks on real batches: real programs recorded with --save-batches, and what the checklist says of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Fast
from tokenizers.models import WordLevel
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import hypocenter
from hypocenter.checklist.checklist import Configuration, Setting
from hypocenter.checklist.data import ids_in_range
from hypocenter.checklist.data.rows import OfBatches, of_batches
from hypocenter.checklist.data.side import side_of
from hypocenter.checklist.data.tokenizer import open_tokenizer
from hypocenter.checklist.items.item import load
from hypocenter.errors import ConfigError
from hypocenter.record.reader import open_run

VOCABULARY, LENGTH, SAMPLES, STEPS = 64, 24, 4, 3
BOS, EOS, PAD = 1, 2, 3


def samples(step: int, *, pad: int = PAD) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of a step: each sample a begin, words, an end, and padding after it."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(4, VOCABULARY, (SAMPLES, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    ids[:, 0] = BOS
    for sample in range(SAMPLES):
        n = LENGTH - 2 - 3 * sample
        ids[sample, n], ids[sample, n + 1 :], mask[sample, n + 1 :] = EOS, pad, 0
    return ids, mask


def record(
    out: Path, *, shifts_labels: int = 0, by_id: bool = False, pad: int = PAD, order: tuple[int, ...] = (0, 1, 2),
    own_loss: bool = False, own_shift: int = 1,
) -> Path:  # fmt: skip
    """A tiny Llama trained on three batches. `shifts_labels`: what the collator shifts, beside the model.

    Args:
        by_id: padding is masked out of the labels by its id, not by the mask.
        own_loss: the program takes the loss of the logits itself, `own_shift` tokens ahead.
    """
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        pad_token_id=None, bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(model, optimizer, out=out, save_batches=STEPS):
        for step in order:
            ids, mask = samples(step, pad=pad)
            labels = ids.clone()
            labels[(ids == pad) if by_id else (mask == 0)] = -100
            if shifts_labels:
                labels = torch.cat([labels[:, shifts_labels:], torch.full((SAMPLES, shifts_labels), -100)], dim=1)
            if own_loss:
                logits = model(input_ids=ids, attention_mask=mask).logits
                wanted = labels[:, own_shift:]
                loss = F.cross_entropy(logits[:, : LENGTH - own_shift].transpose(1, 2), wanted)
            else:
                loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return out


def configured(**ids: int) -> Configuration:
    settings = {
        f"data.{name}_token_id": Setting(item=f"data.{name}_token_id", value=i, spelled=f"{name}: {i}")
        for name, i in ids.items()
    }
    return Configuration(label="made", kinds=("made",), settings=settings)


def checked(one: Path, other: Path | None, tokenizer: Any = None, **ids: int) -> OfBatches:
    runs = (open_run(one), open_run(other) if other is not None else None)
    side = configured(**(ids or {"bos": BOS, "eos": EOS, "pad": PAD}))
    return of_batches(runs, (side, side), load(), tokenizer)


def verdicts(found: OfBatches) -> dict[str, str]:
    return {row.item.partition(".")[2]: row.verdict for row in found.rows}


def faults(found: OfBatches, item: str) -> list[tuple[str, str]]:
    return [(remark.side, remark.text) for row in found.rows if row.item == f"data.{item}" for remark in row.remarks]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("good") / "run")


def test_the_same_program_twice_is_the_same_in_everything(good, tmp_path) -> None:
    found = checked(good, record(tmp_path / "run"))

    assert set(verdicts(found).values()) == {"same"}
    assert {row.item for row in found.rows} == {
        "data.batches", "data.ids_in_range", "data.labels_shifted", "data.eos_supervised", "data.special_ids",
    }  # fmt: skip
    assert not [remark for row in found.rows for remark in row.remarks]
    assert found.notes == ()


def test_a_loss_of_ones_own_that_asks_for_the_same_tokens_is_the_same(good, tmp_path) -> None:
    found = checked(good, record(tmp_path / "run", own_loss=True))

    assert verdicts(found)["labels_shifted"] == verdicts(found)["eos_supervised"] == "same"
    assert verdicts(found)["batches"] == "same"  # by the samples that were kept: labels went another way


@pytest.mark.parametrize("how", [{"shifts_labels": 1}, {"own_loss": True, "own_shift": 2}])
def test_labels_that_were_shifted_twice(good, tmp_path, how) -> None:
    found = checked(good, record(tmp_path / "run", **how))

    assert verdicts(found)["labels_shifted"] == "different"
    assert faults(found, "labels_shifted") == [
        ("candidate", "labels were shifted twice: each place learns the token after the next")
    ]
    assert verdicts(found)["batches"] in ("same", "equivalent")  # the inputs are


def test_labels_that_were_never_shifted(good, tmp_path) -> None:
    found = checked(good, record(tmp_path / "run", own_loss=True, own_shift=0))

    assert faults(found, "labels_shifted")[0][1].startswith("labels were never shifted")


def test_ends_that_the_mask_of_padding_takes_away(good, tmp_path) -> None:
    found = checked(good, record(tmp_path / "run", by_id=True, pad=EOS), eos=EOS, pad=EOS)

    assert verdicts(found)["eos_supervised"] == "different"
    (side, text), = faults(found, "eos_supervised")  # fmt: skip
    assert side == "candidate"
    assert text.endswith("no place learns one; it is also the id of padding, by which labels are masked")


def test_masking_by_id_hurts_nobody_where_padding_has_an_id_of_its_own(good, tmp_path) -> None:
    found = checked(good, record(tmp_path / "run", by_id=True))

    assert verdicts(found)["eos_supervised"] == "same"


def test_an_id_outside_of_the_vocabulary_is_named_with_its_place(good) -> None:
    side = side_of("baseline", open_run(good))

    seen = ids_in_range.look(replace(side, vocabulary=40))

    ids, _ = samples(0)
    sample, place = (ids >= 40).nonzero()[0].tolist()
    assert seen.value == "outside"
    assert f"sample {sample}, place {place}" in seen.fault
    assert side.vocabulary == VOCABULARY
    assert ids_in_range.look(side).value == "in range"


def test_batches_in_another_order_are_found_again(good, tmp_path) -> None:
    found = checked(good, record(tmp_path / "run", order=(0, 2, 1)))

    row = next(row for row in found.rows if row.item == "data.batches")
    assert row.verdict == "different"
    assert "2 of 3 steps have another batch, the first is step 1: the baseline has that batch at step 2" in row.why


def test_padding_with_another_id_than_configured(good, tmp_path) -> None:
    found = checked(good, record(tmp_path / "run", pad=5))

    assert verdicts(found)["special_ids"] == "different"
    assert faults(found, "special_ids") == [("candidate", "padding is 5 in the batches and 3 in the configuration")]


def test_one_side_alone_is_checked_too(good) -> None:
    found = checked(good, None)

    assert set(verdicts(found).values()) == {"only-baseline"}


def save_tokenizer(folder: Path, pad: str = "<pad>") -> Path:
    folder.mkdir()
    words = {"<unk>": 0, "<s>": BOS, "</s>": EOS, "<pad>": PAD, **{f"w{i}": i for i in range(4, VOCABULARY)}}
    fast = Fast(WordLevel(words, unk_token="<unk>"))
    fast.add_special_tokens(["<s>", "</s>", "<pad>"])
    fast.save(str(folder / "tokenizer.json"))
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": pad}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    return folder


def test_samples_are_decoded_and_special_ids_are_the_tokenizers(good, tmp_path) -> None:
    right = checked(good, None, open_tokenizer(save_tokenizer(tmp_path / "right")))
    wrong = checked(good, None, open_tokenizer(save_tokenizer(tmp_path / "wrong", pad="w9")))

    ids, _ = samples(0)
    assert right.samples[0].startswith(f"baseline, step 0, sample 0: <s> w{ids[0, 1]} w{ids[0, 2]} ")
    assert faults(right, "special_ids") == []
    assert faults(wrong, "special_ids") == [("baseline", "pad is 3 in the configuration and 9 in the tokenizer")]


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": ' * 5000])
def test_a_broken_tokenizer_is_one_clear_error(tmp_path, text) -> None:
    (tmp_path / "tokenizer.json").write_text(text)

    with pytest.raises(ConfigError, match="tokenizer"):
        open_tokenizer(tmp_path)


def test_a_damaged_batch_is_said_and_the_others_are_read(tmp_path) -> None:
    run = record(tmp_path / "run")
    next(run.glob("rank-00000/batches/step-000001/*")).write_bytes(b"\xff" * 64)

    found = checked(run, None)

    assert any("mb-0.safetensors of rank 0" in note for note in found.notes)
    assert verdicts(found)["labels_shifted"] == "only-baseline"


class Written(torch.nn.Module):
    """Takes ids and labels by position, and has no logits: nobody sees what its loss asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return (self.head(self.words(ids)) - self.words(wanted)).square().mean()


def record_written(out: Path, shift: int) -> Path:
    model = Written()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(model, optimizer, out=out, save_batches=STEPS):
        for step in range(STEPS):
            text = torch.randint(4, VOCABULARY, (SAMPLES, LENGTH + 1), generator=torch.Generator().manual_seed(step))
            model(text[:, :LENGTH], text[:, shift : shift + LENGTH]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return out


def test_labels_without_a_name_are_known_by_what_they_hold(tmp_path) -> None:
    right = record_written(tmp_path / "right", 1)

    same = checked(right, record_written(tmp_path / "same", 1))
    found = checked(right, record_written(tmp_path / "wrong", 0))

    assert verdicts(same)["labels_shifted"] == "same"
    (row,) = [row for row in found.rows if row.item == "data.labels_shifted"]
    assert (row.baseline, row.candidate) == ("labels hold the next token", "labels hold its own token")


def test_what_one_side_asks_for_is_not_held_against_what_the_other_was_given(good, tmp_path) -> None:
    found = checked(good, record_written(tmp_path / "written", 1))

    assert verdicts(found)["labels_shifted"] == "different"
    (row,) = [row for row in found.rows if row.item == "data.labels_shifted"]
    assert (row.baseline, row.candidate) == ("labels hold its own token", "labels hold the next token")
    assert "whether the model shifts them as well was not seen" in row.why
