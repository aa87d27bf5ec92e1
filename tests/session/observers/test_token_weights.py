"""What a label weighs in a step of several micro-batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.detect.microbatch_rows import N_LABELS, TOKEN_GAP
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

torch.set_num_threads(1)
VOCABULARY, ROWS = 11, 4


class Program:
    """Means of means over micro-batches with different numbers of labels; each twin does one thing otherwise."""

    lengths = (2, 12, 12, 4)  # labels of each row that count, by micro-batch

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def counts(self, step):
        return self.lengths

    def loss(self, logits, labels, n_total):
        return nn.functional.cross_entropy(logits, labels) / len(self.lengths)

    def batch(self, n_valid):
        tokens = torch.randint(VOCABULARY, (ROWS, 12))
        labels = (tokens + n_valid) % VOCABULARY
        labels[:, n_valid:] = -100
        return tokens, labels.flatten()

    def backward(self, number, tokens, labels, n_total):
        self.loss(self.model(tokens).flatten(0, 1), labels, n_total).backward()

    def run(self, n_steps=4):
        for step in range(n_steps):
            batches = [self.batch(n) for n in self.counts(step)]
            n_total = sum(int((labels != -100).sum()) for _, labels in batches)
            for number, (tokens, labels) in enumerate(batches):
                self.backward(number, tokens, labels, n_total)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return [p.detach().clone() for p in self.model.parameters()]


class MaskedByHand(Program):
    def loss(self, logits, labels, n_total):
        mask = (labels != -100).float()
        each = nn.functional.cross_entropy(logits, labels.clamp(min=0), reduction="none")
        return (each * mask).sum() / mask.sum() / 4


class Scaled(Program):
    """Under a loss scaler."""

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.optimizer.zero_grad()

    def backward(self, number, tokens, labels, n_total):
        self.scaler.scale(self.loss(self.model(tokens).flatten(0, 1), labels, n_total)).backward()


class EqualCounts(Program):
    lengths = (6, 6, 6, 6)


class NearlyEqual(Program):
    lengths = (10, 12, 11, 12)


class Faint(Program):
    """7 % of the loss."""

    lengths = (9, 12, 12, 9)


class OverAll(Program):
    def loss(self, logits, labels, n_total):
        return nn.functional.cross_entropy(logits, labels, reduction="sum") / n_total


class WeighedMeans(Program):
    """Means, put right by hand."""

    def loss(self, logits, labels, n_total):
        return nn.functional.cross_entropy(logits, labels) * (labels != -100).sum() / n_total


class LastIsShort(Program):
    """The last micro-batches of the data set, once."""

    def counts(self, step):
        return self.lengths if step == 2 else (12, 12, 12, 12)


class Classifies(Program):
    """One label a row, the same number of rows."""

    def batch(self, n_valid):
        return torch.randint(VOCABULARY, (8, 1)), torch.randint(VOCABULARY, (8,))


class TwoLosses(Program):
    """Two lines that call backward: losses of two kinds, which are meant to weigh the same."""

    lengths = (2, 12)

    def backward(self, number, tokens, labels, n_total):
        loss = self.loss(self.model(tokens).flatten(0, 1), labels, n_total)
        if number:
            loss.backward()
        else:
            loss.backward()


class OneMicrobatch(Program):
    lengths = (2,)


class Squares(Program):
    def loss(self, logits, labels, n_total):
        return logits.square().mean()


def found(out):
    return [f for f in diagnose(open_run(out)).findings if f.code == "HC331"]


@pytest.mark.parametrize("program", [Program, MaskedByHand, Scaled])
def test_means_of_means_are_measured_and_said_once(tmp_path, program):
    with hypocenter.watch(out=str(tmp_path / "run")):
        program().run()

    (finding,) = found(tmp_path / "run")
    assert (finding.step, finding.severity, finding.confidence) == (0, "warning", "proven")
    assert "weigh 6 times" in finding.title
    rows = open_run(tmp_path / "run").readings(phase="optimizer")
    assert [r.summary.sum for r in rows if r.port == N_LABELS and r.step == 0] == [8, 48, 48, 16]


def test_a_faint_difference_is_a_note(tmp_path):
    with hypocenter.watch(out=str(tmp_path / "run")):
        Faint().run()

    (finding,) = found(tmp_path / "run")
    assert (finding.step, finding.severity, finding.confidence) == (0, "note", "proven")
    assert "weigh 1.33 times" in finding.title


def test_the_gap_is_that_of_the_gradient_of_the_whole_batch(tmp_path):
    """Against gradients made here, without any replay."""
    with hypocenter.watch(out=str(tmp_path / "run")):
        Program().run(n_steps=2)
    mean, whole = _gradients_of_second_step()

    (_, row) = [r for r in open_run(tmp_path / "run").readings(phase="optimizer") if r.port == TOKEN_GAP]
    assert row.summary.sum == pytest.approx(float((mean - whole).norm() / whole.norm()), rel=1e-4)


def _gradients_of_second_step():
    """(as used, every label alike) of the second step of `Program`."""
    program, out = Program(), []
    for step in range(2):
        batches = [program.batch(n) for n in program.lengths]
        n_total = sum(int((labels != -100).sum()) for _, labels in batches)
        if step:
            whole = [OverAll.loss(program, program.model(t).flatten(0, 1), y, n_total) for t, y in batches]
            out.append(torch.autograd.grad(sum(whole), list(program.model.parameters())))
        for tokens, labels in batches:
            program.backward(0, tokens, labels, n_total)
        if step:
            out.insert(0, [p.grad for p in program.model.parameters()])
        program.optimizer.step()
        program.optimizer.zero_grad(set_to_none=True)
    return [torch.cat([g.flatten() for g in gradients]) for gradients in out]


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [EqualCounts, NearlyEqual, OverAll, WeighedMeans, LastIsShort, Classifies, TwoLosses, OneMicrobatch, Squares],
)
def test_labels_that_weigh_as_they_should_are_silent(tmp_path, program):
    with hypocenter.watch(out=str(tmp_path / "run")):
        program().run()

    assert found(tmp_path / "run") == []


def test_transformers_that_count_items_in_the_batch_are_silent(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=1, n_positions=12)

    def train(out, **counted):
        model = transformers.GPT2LMHeadModel(config)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with hypocenter.watch(out=out):
            for _ in range(4):
                batches = [Program.batch(None, n) for n in Program.lengths]
                counted = {k: sum(int((y != -100).sum()) for _, y in batches) for k in counted}
                for tokens, labels in batches:
                    loss = model(input_ids=tokens, labels=labels.reshape(tokens.shape), **counted).loss
                    (loss if counted else loss / 4).backward()
                optimizer.step()
                optimizer.zero_grad()
        return found(out)

    assert train(str(tmp_path / "right"), num_items_in_batch=0) == []
    assert len(train(str(tmp_path / "wrong"))) == 1


def test_weights_are_the_same_bits(tmp_path):
    plain = Program().run()

    with hypocenter.watch(out=str(tmp_path / "run")):
        watched = Program().run()

    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
