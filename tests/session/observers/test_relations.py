"""`run --relations`: what does not hold is a finding with its module; training is the same to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import hypocenter
from hypocenter import own_time
from hypocenter.detect.relation_rows import HOLDS, LOOKED, NOT_ASKED
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run
from hypocenter.relations.subject import NO_TIME, Subject
from hypocenter.session.observers import relations

CODES = ("HC241", "HC242", "HC243", "HC244")


class Net(nn.Module):
    """A norm that takes its statistics over the batch, if it is wrong; dropout, BatchNorm and a counter."""

    def __init__(self, *, is_wrong):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(6, 8), Norm(0 if is_wrong else -1), nn.Linear(8, 3)
        self.batch_norm, self.dropout, self.n_calls = nn.BatchNorm1d(8), nn.Dropout(0.3), 0

    def forward(self, x):
        self.n_calls += 1
        return self.head(self.dropout(self.norm(self.batch_norm(self.first(x)).relu())))


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return (x - x.mean(self.dim, keepdim=True)) / (x.std(self.dim, keepdim=True) + 1e-3)


def trained(out, *, is_wrong=False, **options):
    torch.manual_seed(0)
    model = Net(is_wrong=is_wrong)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    handle = hypocenter.watch(model, optimizer, out=str(out), **options) if out else None
    for _ in range(4):
        x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if handle is not None:
        handle.close()
    return losses, model, torch.get_rng_state()


def test_a_norm_over_the_batch_is_named_once(tmp_path):
    trained(tmp_path / "run", is_wrong=True, audit="never", relations="0-3")

    run = open_run(tmp_path / "run")
    found = [f for f in diagnose(run).findings if f.code in CODES]
    assert [(f.code, f.severity, f.step, f.site, f.cause) for f in found] == [
        ("HC241", "warning", 0, "norm", "sample-leak")
    ]
    assert found[0].actual > found[0].limit


@pytest.mark.parametrize("is_wrong", [False, True])
def test_training_is_the_same_to_the_bit(tmp_path, is_wrong):
    plain, of_plain, rng_of_plain = trained(None, is_wrong=is_wrong)

    watched, of_watched, rng_of_watched = trained(tmp_path / "run", is_wrong=is_wrong, relations="0-3")

    assert plain == watched
    assert torch.equal(rng_of_plain, rng_of_watched)
    assert of_plain.n_calls == of_watched.n_calls
    states = zip(of_plain.state_dict().values(), of_watched.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in states)


def looked(out):
    """Rows of what was looked at: (step, asked, held, words)."""
    rows = [row for row in open_run(out).readings() if row.site == "relations"]
    return [(row.step, row.summary.n, int(row.summary.sum), row.names) for row in rows]


@pytest.mark.parametrize(("free_s", "codes"), [(60.0, ["HC241", "HC251"]), (0.0, [])])
def test_what_begins_in_the_middle_of_a_run_is_told_between_two_looks(tmp_path, monkeypatch, free_s, codes):
    monkeypatch.setattr(relations, "FREE_S", free_s)
    for name in ("SHARE", "FIRST_SHARE", "WHOLE_S"):
        monkeypatch.setattr(relations, name, 0.0)
    torch.manual_seed(0)
    model = Net(is_wrong=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with hypocenter.watch(model, optimizer, out=str(tmp_path)):
        for step in range(26):
            model.norm.dim = 0 if step >= 12 else -1
            x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
            outputs = model(x).softmax(-1) if step >= 20 else model(x)
            functional.cross_entropy(outputs, y).backward()
            optimizer.step()
            optimizer.zero_grad()

    found = [each for each in diagnose(open_run(tmp_path)).findings if each.code in ("HC241", "HC251")]

    assert sorted(each.code for each in found) == codes
    if found:
        told = {each.code: (each.step, " ".join(each.why)) for each in found}
        assert (told["HC241"][0], told["HC251"][0]) == (16, 24)
        assert "it held at step 8" in told["HC241"][1]
        assert "it was not seen at step 16" in told["HC251"][1]


@pytest.fixture
def slow(monkeypatch):
    """A clock by which each forward of a look takes a second, and a list of what there is time for."""
    now, run = [0.0], Subject.run

    def slowly(self, *args, then=lambda _: None, **kwargs):
        def later(ran):
            now[0] += 1.0
            then(ran)

        return run(self, *args, then=later, **kwargs)

    monkeypatch.setattr(own_time, "now", lambda: now[0])
    monkeypatch.setattr(Subject, "run", slowly)
    monkeypatch.setattr(relations, "FREE_S", 2.5)
    return now


def test_a_first_look_asks_all_where_forwards_are_long(tmp_path, slow):
    trained(tmp_path / "run")

    (first, *_) = looked(tmp_path / "run")
    assert first[0] == 1
    assert not any(NO_TIME in words for words in first[3])
    assert slow[0] > 6.0


def test_what_there_was_no_time_for_is_asked_first_at_the_next_look(tmp_path, slow, monkeypatch):
    monkeypatch.setattr(relations, "WHOLE_S", 0.0)
    monkeypatch.setattr(relations, "FIRST_SHARE", 1.0)
    torch.manual_seed(0)
    model = Net(is_wrong=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with hypocenter.watch(model, optimizer, out=str(tmp_path)):
        for _ in range(40):
            slow[0] += 0.2
            functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 3, (8,))).backward()
            optimizer.step()
            optimizer.zero_grad()

    rows = [words for _, _, _, words in looked(tmp_path)]
    late = {words.partition(NOT_ASKED)[0] for words in rows[0] if NO_TIME in words}
    asked = {words.removesuffix(HOLDS) for row in rows[1:] for words in row if words.endswith(HOLDS)}
    assert {"inputs", "modes"} <= late
    assert {"inputs", "modes"} <= asked
    assert not any("lack of time" in warning for warning in open_run(tmp_path).run.warnings)


def test_a_run_says_in_a_line_what_there_was_never_time_for(tmp_path, slow, monkeypatch):
    monkeypatch.setattr(relations, "FREE_S", 3.5)
    monkeypatch.setattr(relations, "WHOLE_S", 0.0)
    monkeypatch.setattr(relations, "FIRST_SHARE", 0.0)
    trained(tmp_path / "run")

    run = open_run(tmp_path / "run")
    (said,) = [note for note in diagnose(run).notes if "lack of time" in note]
    assert "modes" in said
    assert "samples" not in said
    assert diagnose(run).status == "healthy"


def test_a_run_says_that_there_was_time_for_no_relation(tmp_path, slow, monkeypatch):
    for name in ("FREE_S", "WHOLE_S", "FIRST_SHARE"):
        monkeypatch.setattr(relations, name, 0.0)
    trained(tmp_path / "run")

    run = open_run(tmp_path / "run")
    (said,) = [note for note in diagnose(run).notes if "lack of time" in note]
    assert "time: all (" in said
    assert all(NO_TIME in words for words in looked(tmp_path / "run")[0][3])


def test_where_a_loss_scaler_skips_the_first_updates_the_next_one_is_looked_at(tmp_path):
    torch.manual_seed(0)
    model = Net(is_wrong=True)
    optimizer, scaler = torch.optim.Adam(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=2.0**9)
    with hypocenter.watch(model, optimizer, out=str(tmp_path)):
        for step in range(8):
            x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
            scaler.scale(functional.cross_entropy(model(x), y)).backward()
            model.head.weight.grad[0, 0] += float("inf") if step < 4 else 0.0  # as an overflow leaves it
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    assert [(f.site, f.step) for f in diagnose(open_run(tmp_path)).findings if f.code == "HC241"] == [("norm", 4)]


def test_by_default_it_is_looked_at_after_the_first_update(tmp_path):
    trained(tmp_path / "run", is_wrong=True)

    found = [f for f in diagnose(open_run(tmp_path / "run")).findings if f.code in CODES]
    assert [(f.code, f.step, f.site) for f in found] == [("HC241", 1, "norm")]
    assert [step for step, *_ in looked(tmp_path / "run")][:1] == [1]


@pytest.mark.parametrize("options", [{"relations": "never"}, {"audit": "never"}, {"replay": False}])
def test_where_nothing_is_to_be_done_again_nothing_is_looked_at(tmp_path, options):
    trained(tmp_path / "run", is_wrong=True, **options)

    assert looked(tmp_path / "run") == []


MEMORY = torch.zeros(8, 8)  # of the program: no attribute of a module


class Remembering(nn.Module):
    """Keeps its batch outside of itself, and looks at it in the next step."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.first(x).relu() + 0.1 * MEMORY.mean()
        MEMORY.copy_(h.detach())
        return self.head(h)


def test_a_forward_that_writes_where_nothing_can_be_put_back_is_not_asked(tmp_path):
    model, losses = Remembering(), {}
    state = model.state_dict()
    kept = {key: value.clone() for key, value in state.items()}
    for options in ({"relations": "never"}, {"relations": "0-3"}):
        MEMORY.zero_()
        model.load_state_dict(kept)
        torch.manual_seed(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        out = tmp_path / options["relations"]
        losses[options["relations"]] = seen = []
        with hypocenter.watch(model, optimizer, out=str(out), audit="never", **options):
            for _ in range(4):
                loss = functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 3, (8,)))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                seen.append((loss.item(), MEMORY.sum().item()))

    assert losses["never"] == losses["0-3"]
    assert "writes to a tensor from before" in " ".join(looked(tmp_path / "0-3")[0][3])


def test_a_loss_that_is_given_probabilities_is_told_once_by_default(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hypocenter.watch(model, optimizer, out=str(tmp_path)):
        for _ in range(20):
            optimizer.zero_grad()
            functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 3, (8,))).backward()
            optimizer.step()

    (finding,) = [f for f in diagnose(open_run(tmp_path)).findings if f.code == "HC251"]
    assert (finding.step, finding.severity) == (1, "warning")
    assert finding.source is not None
    assert "cross_entropy" in finding.source.text


class Valued(nn.Module):
    """Scores, and a value."""

    def __init__(self):
        super().__init__()
        self.body, self.scores, self.value = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x):
        h = self.body(x).tanh()
        return self.scores(h), self.value(h)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", [functional.mse_loss, functional.smooth_l1_loss])
@pytest.mark.parametrize("is_squeezed", [False, True])
def test_a_loss_of_torch_in_the_loop_is_held_to_one_shape(tmp_path, loss, is_squeezed):
    torch.manual_seed(0)
    model, kept = Valued(), torch.randn(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hypocenter.watch(model, optimizer, out=str(tmp_path), relations="1"):
        for _ in range(4):
            x, y, rows = torch.randn(8, 6), torch.randint(0, 3, (8,)), torch.randperm(64)[:8]
            scores, value = model(x)
            optimizer.zero_grad()
            term = loss(value.squeeze(1) if is_squeezed else value, kept[rows])
            (functional.cross_entropy(scores, y) + term).backward()
            optimizer.step()

    found = [f for f in diagnose(open_run(tmp_path)).findings if f.code == "HC252"]
    told = [] if is_squeezed else [f"{loss.__name__} of [8, 1] and [8]"]
    assert [f.why[0].partition(" meets")[0] for f in found] == told


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_labels_that_a_loss_of_torch_in_the_loop_meets_crosswise(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hypocenter.watch(model, optimizer, out=str(tmp_path), relations="1"):
        for _ in range(4):
            x, y = torch.randn(8, 6), torch.randn(8)
            optimizer.zero_grad()
            functional.mse_loss(model(x), y).backward()
            optimizer.step()

    (finding,) = [f for f in diagnose(open_run(tmp_path)).findings if f.code == "HC252"]
    assert finding.why[0].startswith("arithmetic of [8, 1] and [8] compares every output with every label")


class Gated(nn.Module):
    """A gate that is open or not, and from some call on a soft one."""

    def __init__(self, soft_from):
        super().__init__()
        self.value, self.gate, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
        self.n_calls, self.soft_from = 0, soft_from

    def forward(self, x):
        self.n_calls += 1
        gate = self.gate(x)
        is_hard = self.n_calls <= self.soft_from
        return self.head(self.value(x) * ((gate > 0).float() if is_hard else gate.sigmoid()))


@pytest.mark.parametrize(("soft_from", "codes"), [(100, ["HC258"]), (4, [])])
def test_a_parameter_that_never_gets_a_gradient_is_told_and_one_that_soon_does_is_not(tmp_path, soft_from, codes):
    torch.manual_seed(0)
    model = Gated(soft_from)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with hypocenter.watch(model, optimizer, out=str(tmp_path / "run"), relations="1"):
        for _ in range(7):
            optimizer.zero_grad()
            functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 3, (8,))).backward()
            optimizer.step()

    found = [each for each in diagnose(open_run(tmp_path / "run")).findings if each.severity == "warning"]

    assert [each.code for each in found] == codes
    assert not any(each.step for each in found)  # it has had none since the first update
    assert all("gate.weight" in each.title for each in found)


@pytest.mark.parametrize("is_wrong", [True, False])
def test_a_student_is_looked_at_after_its_teacher_was_trained(tmp_path, is_wrong):
    torch.manual_seed(0)
    teacher, student = nn.Linear(6, 3), nn.Linear(6, 3)
    kind = functional.softmax if is_wrong else functional.log_softmax

    def of_teacher(x):
        return functional.cross_entropy(teacher(x), x[:, :3].argmax(1))

    def of_student(x):
        with torch.no_grad():
            said = teacher(x).softmax(1)
        return functional.kl_div(kind(student(x), dim=1), said, reduction="batchmean")

    with hypocenter.watch(out=str(tmp_path)):
        for model, loss_of, n in ((teacher, of_teacher, 12), (student, of_student, 3)):
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for _ in range(n):
                optimizer.zero_grad()
                loss_of(torch.randn(8, 6)).backward()
                optimizer.step()

    told = [(f.code, f.step) for f in diagnose(open_run(tmp_path)).findings if f.severity == "warning"]
    assert told == [("HC251", 13)] * is_wrong


def test_a_loss_that_divides_by_the_number_of_samples_is_called_a_mean(tmp_path):
    """`kl_div` divides by the size that it was given: a number like any other in a replay of a half."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters())
    with hypocenter.watch(model, optimizer, out=str(tmp_path / "run"), relations="0-3"):
        for _ in range(4):
            x, guide = torch.randn(12, 6), torch.randn(12, 3).softmax(-1)
            out = model(x)
            loss = functional.kl_div(out.log_softmax(-1), guide, reduction="batchmean") + out.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    said = [word for row in open_run(tmp_path / "run").readings() if row.port == LOOKED for word in row.names]
    assert f"split{HOLDS}" in said
    assert not any("no mean of" in word for word in said)


class Grown(nn.Module):
    """Attention whose mask is made for the first length, and lengthened by what hides nothing."""

    def __init__(self, *, is_wrong):
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(20, 16), nn.Linear(16, 48), nn.Linear(16, 20)
        self.hidden, self.is_wrong = torch.empty(0, 0), is_wrong

    def forward(self, tokens):
        n, m = tokens.shape[1], len(self.hidden)
        if n > m:
            mask = torch.full((n, n), float("-inf")).triu(1)
            self.hidden = functional.pad(self.hidden, (0, n - m, 0, n - m)) if self.is_wrong and m else mask
        q, k, v = self.qkv(self.embed(tokens)).chunk(3, -1)
        return self.head(functional.scaled_dot_product_attention(q, k, v, attn_mask=self.hidden[:n, :n]))


@pytest.mark.parametrize("is_wrong", [True, False])
def test_texts_that_are_longer_than_before_are_asked_about(tmp_path, is_wrong):
    torch.manual_seed(0)
    model = Grown(is_wrong=is_wrong)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with hypocenter.watch(model, optimizer, out=str(tmp_path / "run")):
        for step in range(16):
            tokens = torch.randint(0, 20, (8, 9 if step < 11 else 15))
            logits = model(tokens[:, :-1])
            optimizer.zero_grad()
            functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()

    found = [f for f in diagnose(open_run(tmp_path / "run")).findings if f.code == "HC242"]
    assert [f.step for f in found] == ([11] if is_wrong else [])


class Joined(nn.Module):
    """A second head, for the token after the next one, gives back something from some step on."""

    def __init__(self, given):
        super().__init__()
        self.embed, self.head, self.given = nn.Embedding(20, 16), nn.Linear(16, 20), given

    def forward(self, tokens, two):
        n = tokens.shape[1] - 2
        hidden = self.embed(tokens[:, :n])
        more = self.embed(tokens[:, self.given : self.given + n])
        return (self.head(hidden), self.head(hidden + more)) if two else (self.head(hidden), None)


@pytest.mark.parametrize(("given", "said"), [(2, [11]), (1, [])])
def test_a_head_that_joins_later_is_asked_about(tmp_path, given, said):
    torch.manual_seed(0)
    model = Joined(given)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with hypocenter.watch(model, optimizer, out=str(tmp_path / "run")):
        for step in range(14):
            tokens = torch.randint(0, 20, (8, 11))
            first, second = model(tokens, two=step >= 11)
            loss = functional.cross_entropy(first.flatten(0, 1), tokens[:, 1:10].flatten())
            if second is not None:
                loss = loss + functional.cross_entropy(second.flatten(0, 1), tokens[:, 2:11].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    found = [f for f in diagnose(open_run(tmp_path / "run")).findings if f.code == "HC242"]
    assert [f.step for f in found] == said


class Masking(nn.Module):
    """A model that leaves out words of 0; what says which lies in an attribute. `keeps`: from the first batch on."""

    def __init__(self, keeps):
        super().__init__()
        self.embed, self.head, self.keeps = nn.Embedding(10, 8), nn.Linear(8, 3), keeps
        self.is_word = None

    def forward(self, tokens):
        if not self.keeps or self.is_word is None:
            self.is_word = (tokens != 0).float().unsqueeze(2)
        return self.head((self.embed(tokens) * self.is_word).sum(1))


class GoingOn(Masking):
    """It goes on from what the batch before has left."""

    def forward(self, tokens):
        now = super().forward(tokens)
        before, self.state = getattr(self, "state", torch.zeros_like(now)), now.detach()
        return now + before


@pytest.mark.parametrize(
    ("model", "is_always_one", "codes"),
    [
        (Masking(keeps=True), False, ["HC241"]),
        (Masking(keeps=False), False, []),
        (Masking(keeps=True), True, []),  # all of a small data set in each step
        (GoingOn(keeps=False), False, []),
    ],
)
def test_a_mask_of_another_batch(model, is_always_one, codes, tmp_path):
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    tokens, labels = torch.randint(0, 3, (8, 6)), torch.randint(0, 3, (8,))
    with hypocenter.watch(model, optimizer, out=str(tmp_path / "run")):
        for _ in range(4):
            if not is_always_one:
                tokens, labels = torch.randint(0, 3, (8, 6)), torch.randint(0, 3, (8,))
            functional.cross_entropy(model(tokens), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert [f.code for f in diagnose(open_run(tmp_path / "run")).findings if f.code in CODES] == codes
