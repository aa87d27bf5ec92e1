"""What a run is made to do, on real training in this process: rate, last step, first weights, gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import hypocenter
from hypocenter.compare.updates.recompute import recompute
from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.record.reader import open_run

STEPS = 4


class Net(nn.Module):
    def __init__(self, tied: bool = False, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.embed(ids)))


class Training:
    """Some steps; keeps losses, rates as a scheduler leaves them, and parameters after each step."""

    def __init__(
        self, seed: int = 0, *, tied: bool = False, width: int = 6, kind: str = "AdamW", first: float = 1 / 3,
        **options: Any,
    ) -> None:  # fmt: skip
        torch.manual_seed(seed)
        self.model = Net(tied, width)
        self.optimizer = getattr(torch.optim, kind)(self.model.parameters(), **{"lr": 0.1, **options})
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, first, total_iters=3)
        self.losses: list[float] = []
        self.rates: list[float] = []

    def go(self, model: nn.Module | None = None) -> Training:
        draw = torch.Generator().manual_seed(7)
        for _ in range(STEPS):
            ids = torch.randint(11, (8,), generator=draw)
            loss = nn.functional.cross_entropy((model or self.model)(ids), (ids + 1) % 11)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            self.losses.append(loss.item())
            self.rates.append(self.optimizer.param_groups[0]["lr"])
        return self


def imposed(folder: Path, training: Training, **options: Any) -> Training:
    with hypocenter.watch(out=str(folder), **options):
        return training.go()


def refused(folder: Path, training: Training, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    """The words with which it was refused; no step was taken."""
    with pytest.raises(SystemExit) as ended, hypocenter.watch(out=str(folder), **options):
        training.go()
    assert ended.value.code == 2
    assert training.losses == []
    return capsys.readouterr().err


# rate and last step


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adagrad"])
def test_rate_zero_leaves_every_bit_and_the_schedule_alone(tmp_path: Path, kind: str) -> None:
    plain = Training(kind=kind, weight_decay=0.1).go()
    training = Training(kind=kind, weight_decay=0.1)
    before = {name: p.detach().clone() for name, p in training.model.named_parameters()}

    imposed(tmp_path / "run", training, impose_lr=0.0)

    assert all(torch.equal(before[name], p) for name, p in training.model.named_parameters())
    assert training.rates == plain.rates
    assert training.losses[0] == plain.losses[0]
    records = [record for _, record in open_run(tmp_path / "run").step_records()]
    assert [record.lr for record in records] == [0.0] * STEPS


def test_an_imposed_rate_is_that_of_an_optimizer_that_has_it(tmp_path: Path) -> None:
    constant = Training(lr=0.02, first=1.0).go()

    found = imposed(tmp_path / "run", Training(), impose_lr=0.02)

    assert found.losses == constant.losses
    assert open_run(tmp_path / "run").run.imposed == {"learning_rate": "learning rate 0.02 at every update"}


def test_a_rate_in_a_tensor_is_imposed_and_put_back(tmp_path: Path) -> None:
    training = Training(lr=torch.tensor(0.1), foreach=False, first=1.0)
    rate = training.optimizer.param_groups[0]["lr"]

    imposed(tmp_path / "run", training, impose_lr=0.0)

    assert training.optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.1)


def test_an_optimizer_without_a_rate_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = Training()
    training.schedule = None  # type: ignore[assignment]
    for group in training.optimizer.param_groups:
        del group["lr"]

    said = refused(tmp_path / "run", training, capsys, impose_lr=0.0)

    assert "no learning rate can be imposed on AdamW" in said


@pytest.mark.parametrize("last", [0, 2])
def test_training_ends_after_the_step_that_was_named(tmp_path: Path, last: int) -> None:
    training = Training()

    with pytest.raises(SystemExit) as ended:
        imposed(tmp_path / "run", training, stop_after_step=last, level="tensors")

    run = open_run(tmp_path / "run")
    assert ended.value.code == 0
    assert [record.step for _, record in run.step_records()] == list(range(last + 1))
    assert {row.verdict for row in recompute(run, last)} == {"as-stated"}


def by_closure(model: nn.Module, optimizer: torch.optim.Optimizer, taken: list[int]) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        return loss

    for step in range(5):
        taken.append(step)
        optimizer.step(closure)


def by_scaler(model: nn.Module, optimizer: torch.optim.Optimizer, taken: list[int]) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(5):
        taken.append(step)
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 3)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("train", [by_closure, by_scaler])
def test_a_scaler_and_a_closure_are_stopped_and_slowed_too(tmp_path: Path, train: Any) -> None:
    model, taken = nn.Linear(3, 1), list[int]()
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with pytest.raises(SystemExit), hypocenter.watch(out=str(tmp_path / "run"), stop_after_step=1, impose_lr=0.0):
        train(model, optimizer, taken)

    assert taken == [0, 1]
    assert torch.equal(model.weight, before)
    assert [record.lr for _, record in open_run(tmp_path / "run").step_records()] == [0.0, 0.0]


# first weights


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Training]:
    folder = tmp_path_factory.mktemp("saved") / "run"
    return folder, imposed(folder, Training(seed=0), save_initial_weights=True, level="tensors")


def test_weights_of_a_recording_make_another_start_the_same_training(
    tmp_path: Path, saved: tuple[Path, Training]
) -> None:
    folder, first = saved

    found = imposed(tmp_path / "run", Training(seed=1), initial_weights=str(folder))

    assert found.losses == first.losses
    held = load_file(folder / "rank-00000" / "initial-weights.safetensors")
    assert set(held) == set(Net().state_dict())
    words = open_run(tmp_path / "run").run.imposed["initial_weights"]
    assert words == f"initial weights of 4 parameters from {folder} (by name)"


@pytest.mark.parametrize("how", ["safetensors", "torch", "wrapped", "bfloat16", "other names"])
def test_weights_of_files(tmp_path: Path, how: str) -> None:
    source = Training(seed=0)
    state = {name: tensor.detach().clone() for name, tensor in source.model.state_dict().items()}
    path = tmp_path / ("w.safetensors" if how != "torch" else "w.pt")
    if how == "torch":
        torch.save({"model": state, "step": 3}, path)
    elif how == "wrapped":
        save_file({f"module.{name}": tensor for name, tensor in state.items()}, path)
    elif how == "bfloat16":
        save_file({name: t.bfloat16() if t.is_floating_point() else t for name, t in state.items()}, path)
    elif how == "other names":
        save_file({name.replace("embed", "tokens"): tensor for name, tensor in state.items()}, path)
    else:
        save_file(state, path)
    training = Training(seed=1)
    given: dict[str, Tensor] = {}
    training.model.register_forward_pre_hook(
        lambda *_: given.update({n: p.detach().clone() for n, p in training.model.named_parameters()})
        if not given else None
    )  # fmt: skip
    options = {"initial_weights": str(path)}
    if how == "other names":
        (tmp_path / "map.toml").write_text('[[pair]]\nbaseline = "tokens.weight"\ncandidate = "embed.weight"\n')
        options["weights_map"] = str(tmp_path / "map.toml")

    imposed(tmp_path / "run", training, **options)

    expected = {n: t.bfloat16().float() if how == "bfloat16" else t for n, t in state.items()}
    assert all(torch.equal(given[name], expected[name]) for name in given), how
    if how == "bfloat16":
        assert "4 cast from bfloat16 to float32" in open_run(tmp_path / "run").run.imposed["initial_weights"]


def test_a_tied_model_takes_either_name_and_refuses_two_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = Net(tied=True).state_dict()
    for name in ("embed.weight", "head.weight"):
        kept = {key: tensor.clone() for key, tensor in state.items() if key == name or "weight" not in key}
        kept |= {key: tensor.clone() for key, tensor in state.items() if key.startswith("norm.")}
        save_file(kept, tmp_path / f"{name}.safetensors")

        found = imposed(
            tmp_path / name, Training(seed=1, tied=True), initial_weights=str(tmp_path / f"{name}.safetensors")
        )

        assert len(found.losses) == STEPS
    save_file({key: tensor.clone() for key, tensor in Net().state_dict().items()}, tmp_path / "untied.safetensors")
    capsys.readouterr()
    said = refused(tmp_path / "bad", Training(tied=True), capsys, initial_weights=str(tmp_path / "untied.safetensors"))
    assert "the model ties 'embed.weight' and 'head.weight', the checkpoint has other values in each" in said


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda state: state.pop("norm.bias"), "no weights for norm.bias"),
        (lambda state: state.update(more=torch.ones(2)), "the model has no place for more"),
        (lambda state: state.update({"head.weight": torch.ones(5, 6)}), "another shape: head.weight 5x6, not 11x6"),
    ],
)
def test_weights_that_do_not_fit_stop_the_program_before_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], edit: Any, words: str
) -> None:
    state = {name: tensor.clone() for name, tensor in Net().state_dict().items()}
    edit(state)
    save_file(state, tmp_path / "w.safetensors")

    said = refused(tmp_path / "run", Training(), capsys, initial_weights=str(tmp_path / "w.safetensors"))

    assert words in said
    assert (tmp_path / "run" / ".refused").exists() or not (tmp_path / "run").exists()


def test_copies_of_an_optimizer_in_float32_are_made_again(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2).bfloat16()
    masters = [torch.nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.5)
    state = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    save_file(state, tmp_path / "w.safetensors")

    with hypocenter.watch(out=str(tmp_path / "run"), initial_weights=str(tmp_path / "w.safetensors"), impose_lr=0.0):
        model(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            master.grad = p.grad.float() if p.grad is not None else None
        optimizer.step()

    found = {name: master.detach() for (name, _), master in zip(model.named_parameters(), masters, strict=True)}
    assert all(torch.equal(found[name], state[name].float()) for name in state)


def test_flat_copies_that_nobody_knows_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(4, 2).bfloat16()
    flat = torch.nn.Parameter(torch.cat([p.detach().float().flatten() for p in model.parameters()]))
    optimizer = torch.optim.SGD([flat], lr=0.5)
    save_file({name: torch.randn_like(p) for name, p in model.named_parameters()}, tmp_path / "w.safetensors")

    with (
        pytest.raises(SystemExit) as ended,
        hypocenter.watch(out=str(tmp_path / "run"), initial_weights=str(tmp_path / "w.safetensors")),
    ):
        model(torch.ones(2, 4, dtype=torch.bfloat16))

    assert ended.value.code == 2
    assert "trains float32 copies that cannot be made again" in capsys.readouterr().err
    assert optimizer.param_groups[0]["params"][0] is flat


def test_what_was_saved_is_a_checkpoint_for_weights(saved: tuple[Path, Training]) -> None:
    found = read_checkpoint(saved[0])

    assert found.kind == "recording"
    assert found.tensors["embed.weight"].shape == (11, 6)


# gradients


def test_another_optimizer_gets_the_baselines_gradients(tmp_path: Path, saved: tuple[Path, Training]) -> None:
    folder, _ = saved
    training = Training(seed=3, lr=0.01)  # other weights, so other gradients of its own

    imposed(tmp_path / "run", training, gradients_from=str(folder), level="tensors")

    for step in (0, 1):
        mine = {row.name: row.update.gradient for row in recompute(open_run(folder), step)}
        rows = recompute(open_run(tmp_path / "run"), step)
        assert {row.verdict for row in rows} == {"as-stated"}
        for row in rows:
            expected, found = mine[row.name], row.update.gradient
            assert expected is not None
            assert found is not None
            assert (expected.raw == found.raw).all()
    assert open_run(tmp_path / "run").run.imposed["gradients"] == f"gradients of steps 0, 1, 2, 3 from {folder}"


def test_gradients_of_another_model_are_refused(
    tmp_path: Path, saved: tuple[Path, Training], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()

    said = refused(tmp_path / "run", Training(width=5), capsys, gradients_from=str(saved[0]))

    assert "the gradients do not fit the model: 4 of 4 parameters get none" in said
    assert "another shape: embed.weight 11x6, not 11x5" in said


def test_a_recording_without_gradients_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    imposed(tmp_path / "sentinel", Training())

    said = refused(tmp_path / "run", Training(), capsys, gradients_from=str(tmp_path / "sentinel"))

    assert "the recording holds no gradients" in said


def test_imposing_nothing_writes_nothing_and_changes_no_bit(tmp_path: Path) -> None:
    plain = Training().go()

    found = imposed(tmp_path / "run", Training())

    assert found.losses == plain.losses
    assert open_run(tmp_path / "run").run.imposed == {}
    assert not list((tmp_path / "run").rglob("*.safetensors"))
