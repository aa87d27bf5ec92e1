"""What a MindSpore run is made to do, on real training in this process: rate, last step, first weights, gradients."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.common import api
from mindspore.experimental import optim as experimental

import hypocenter
from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.compare.weights.checkpoint import Tensor, whole
from hypocenter.compare.weights.writer import write_file
from hypocenter.record.reader import open_run
from hypocenter.session.mindspore.imposed.tensors import copied

sys.path.insert(0, str(Path(__file__).parent))

from training import STEPS, WORDS, Net, Training, batches, values

MODES = ["PYNATIVE_MODE", "GRAPH_MODE"]
WAYS = ["function", "cell"]


@pytest.fixture(autouse=True, params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    ms.set_context(mode=getattr(ms, request.param))
    yield request.param
    ms.set_context(mode=ms.PYNATIVE_MODE)
    api._pynative_executor.clear_res()  # a refusal ends a forward in the midst of it, as it would the process


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


def copied_whole(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.read(whole(tensor.shape))


# rate and last step


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("kind", [nn.Adam, nn.AdamWeightDecay, nn.SGD])
def test_rate_zero_leaves_every_bit_and_the_programs_own_rate_alone(tmp_path: Path, kind: Any, how: str) -> None:
    training = Training(kind=kind, how=how)
    before = values(training.net)

    imposed(tmp_path / "run", training, impose_lr=0.0)

    assert all(np.array_equal(before[name], now) for name, now in values(training.net).items())
    assert training.rates == [np.float32(0.1)] * STEPS
    records = [record for _, record in open_run(tmp_path / "run").step_records()]
    assert [record.lr for record in records] == [0.0] * STEPS


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
def test_an_imposed_rate_is_that_of_an_optimizer_that_has_it(tmp_path: Path, how: str) -> None:
    constant = Training(lr=0.02, how=how).go()

    found = imposed(tmp_path / "run", Training(how=how), impose_lr=0.02)

    assert found.losses == constant.losses
    assert open_run(tmp_path / "run").run.imposed == {"learning_rate": "learning rate 0.02 at every update"}


class Halving(nn.learning_rate_schedule.LearningRateSchedule):
    def construct(self, step: Any) -> Any:
        return 0.1 / (step.astype(ms.float32) + 1.0)


RATES = {
    "schedule": Halving,
    "table": lambda: [0.1, 0.05, 0.025, 0.0125],
}


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("rates", RATES)
def test_rates_by_step_are_imposed_too(tmp_path: Path, rates: str, how: str) -> None:
    constant = Training(lr=0.02, how=how).go()
    own = Training(lr=RATES[rates](), how=how).go()

    found = imposed(tmp_path / "run", Training(lr=RATES[rates](), how=how), impose_lr=0.02)

    assert found.losses == constant.losses != own.losses


def in_groups(parameters: Any, rate: Any) -> Any:
    first, *others = parameters
    return nn.Adam([{"params": [first], "lr": 0.3}, {"params": others}], rate)


def in_groups_by_schedule(parameters: Any, rate: Any) -> Any:
    first, *others = parameters
    return nn.Adam([{"params": [first], "lr": Halving()}, {"params": others}], rate)


def in_one(parameters: Any, rate: Any) -> Any:
    return nn.Adam(parameters, 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [in_groups, in_groups_by_schedule])
def test_every_group_gets_the_rate(tmp_path: Path, kind: Any) -> None:
    constant = Training(kind=in_one).go()

    found = imposed(tmp_path / "run", Training(kind=kind), impose_lr=0.02)

    assert found.losses == constant.losses


@pytest.mark.slow
def test_groups_of_experimental_optimizers_get_it_and_have_their_own_back(tmp_path: Path) -> None:
    constant = Training(kind=experimental.AdamW, lr=0.02).go()
    training = Training(kind=experimental.AdamW)

    imposed(tmp_path / "run", training, impose_lr=0.02)

    assert training.losses == constant.losses
    assert float(training.optimizer.param_groups[0]["lr"].asnumpy()) == np.float32(0.1)


@pytest.mark.slow
def test_a_rate_that_the_optimizer_computes_itself_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training(kind=lambda parameters, _: nn.AdaFactor(parameters))

    said = refused(tmp_path / "run", training, capsys, impose_lr=0.0)

    assert "no learning rate can be imposed on AdaFactor" in said
    assert "relative_step" in said


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("last", [0, 2])
def test_training_ends_after_the_step_that_was_named(tmp_path: Path, last: int, how: str) -> None:
    training = Training(how=how)

    with pytest.raises(SystemExit) as ended:
        imposed(tmp_path / "run", training, stop_after_step=last)

    run = open_run(tmp_path / "run")
    assert ended.value.code == 0
    assert [record.step for _, record in run.step_records()] == list(range(last + 1))
    assert len(training.losses) == last
    assert run.run.imposed == {"stop": f"stop after step {last}"}


@pytest.mark.slow
def test_training_ends_after_the_batch_that_was_named(tmp_path: Path) -> None:
    training = Training()

    with pytest.raises(SystemExit) as ended:
        imposed(tmp_path / "run", training, stop_after_batch=1)

    assert ended.value.code == 0
    assert len(training.losses) == 1


@pytest.mark.slow
def test_nothing_else_is_taken_for_a_wish(tmp_path: Path) -> None:
    plain = Training().go()

    found = imposed(tmp_path / "run", Training())

    assert found.losses == plain.losses
    assert open_run(tmp_path / "run").run.imposed == {}
    assert not list((tmp_path / "run").rglob("initial-weights*"))


# weights


def saved_by(folder: Path, training: Training, **options: Any) -> Path:
    imposed(folder, training, save_initial_weights=True, **options)
    (path,) = folder.rglob("initial-weights.safetensors")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
def test_saved_weights_are_those_before_the_first_step(tmp_path: Path, how: str) -> None:
    training = Training(how=how)
    before = values(training.net)

    path = saved_by(tmp_path / "run", training)

    prefix = "net." if how == "cell" else ""  # the program's own cell around its model
    held = {name.removeprefix(prefix): tensor for name, tensor in read_checkpoint(path).tensors.items()}
    assert set(held) == {"embed.embedding_table", "norm.gamma", "norm.beta", "head.weight"}
    assert all(np.array_equal(copied_whole(held[name]), before[name]) for name in held)
    assert open_run(tmp_path / "run").run.imposed == {"saved_weights": "initial weights written, 4 tensors"}


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
def test_a_run_starts_from_the_weights_of_another(tmp_path: Path, how: str) -> None:
    first = Training(seed=0, how=how)
    saved_by(tmp_path / "first", first)

    found = imposed(tmp_path / "run", Training(seed=1, how=how), initial_weights=str(tmp_path / "first"))

    assert found.losses == first.losses
    (words,) = open_run(tmp_path / "run").run.imposed.values()
    assert words.startswith("initial weights of 4 parameters from ")
    assert words.endswith("(by name)")


def torch_names(net: Net) -> dict[str, Any]:
    """The same weights as a torch program has them."""
    words = {"embed.embedding_table": "embed.weight", "norm.gamma": "norm.weight", "norm.beta": "norm.bias"}
    held = {words.get(p.name, p.name): copied(p) for p in net.get_parameters()}
    return {f"model.{name}": tensor for name, tensor in held.items()}


RENAMED = {"model.embed": "transformer.wte", "model.norm": "transformer.ln_f", "model.head": "lm_head"}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["by name", "matched"])
def test_weights_of_a_torch_program_find_their_places(tmp_path: Path, how: str) -> None:
    first = Training(seed=0)
    held = torch_names(first.net)
    if how == "matched":
        held = {RENAMED[name.rpartition(".")[0]] + "." + name.rpartition(".")[2]: t for name, t in held.items()}
    write_file(held, tmp_path / "torch.safetensors", {})
    first.go()

    found = imposed(tmp_path / "run", Training(seed=1), initial_weights=str(tmp_path / "torch.safetensors"))

    assert found.losses == first.losses
    assert f"({how})" in open_run(tmp_path / "run").run.imposed["initial_weights"]


def test_weights_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_file(torch_names(Net(width=5)), tmp_path / "other.safetensors", {})

    said = refused(tmp_path / "run", Training(), capsys, initial_weights=str(tmp_path / "other.safetensors"))

    assert "the weights do not fit the model" in said


def test_weights_that_are_left_over_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = {p.name: copied(p) for p in Net().get_parameters()}
    held["extra.weight"] = held["head.weight"]
    write_file(held, tmp_path / "more.safetensors", {})

    said = refused(tmp_path / "run", Training(), capsys, initial_weights=str(tmp_path / "more.safetensors"))

    assert "the model has no place for extra.weight" in said


@pytest.mark.slow
def test_weights_are_rounded_to_the_format_of_the_model(tmp_path: Path) -> None:
    first = Training(seed=0)
    write_file({p.name: copied(p) for p in first.net.get_parameters()}, tmp_path / "full.safetensors", {})
    expected = {name: array.astype(np.float16) for name, array in values(first.net).items()}
    net = Net().to_float(ms.float16)
    for parameter in net.get_parameters():
        parameter.set_dtype(ms.float16)

    with pytest.raises(SystemExit):
        imposed(
            tmp_path / "run", Training(net=net, kind=nn.SGD, lr=0.0), stop_after_step=0,
            initial_weights=str(tmp_path / "full.safetensors"),
        )  # fmt: skip

    assert all(np.array_equal(expected[name], now) for name, now in values(net).items())
    assert "; 4 cast from float32 to float16" in open_run(tmp_path / "run").run.imposed["initial_weights"]


# gradients


def recorded_gradients(folder: Path, seed: int = 3, **training: Any) -> Training:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    return imposed(folder, Training(seed=seed, kind=nn.SGD, **training), level="tensors", schedule="0,1",
                   param_schedule="0,1")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
def test_the_optimizer_gets_the_gradients_of_a_recording(tmp_path: Path, mode: str, how: str) -> None:
    other = recorded_gradients(tmp_path / "other")
    ms.set_context(mode=getattr(ms, mode))
    training = Training(seed=1, kind=nn.SGD, how=how)
    before = values(training.net)
    start = values(Training(seed=3, kind=nn.SGD).net)

    imposed(tmp_path / "run", training, gradients_from=str(tmp_path / "other"))

    for name, first in before.items():
        moved, others = training.steps[1][name] - first, other.steps[1][name] - start[name]
        assert np.allclose(moved, others, atol=1e-6)
    words = open_run(tmp_path / "run").run.imposed["gradients"]
    assert words.startswith("gradients of steps 0, 1 from ")


@pytest.mark.slow
def test_a_loss_scale_of_the_optimizers_own_is_put_in(tmp_path: Path, mode: str) -> None:
    recorded_gradients(tmp_path / "other")
    ms.set_context(mode=getattr(ms, mode))
    start = values(Training(seed=1, kind=nn.SGD).net)

    plain, scaled = (
        imposed(
            tmp_path / f"run{scale}", Training(seed=1, kind=nn.SGD, scale=scale),
            gradients_from=str(tmp_path / "other"),
        ).steps[1]
        for scale in (1.0, 1024.0)
    )  # fmt: skip

    assert all(np.array_equal(plain[name], scaled[name]) for name in start)
    assert any(not np.array_equal(plain[name], start[name]) for name in start)


@pytest.mark.slow
def test_gradients_of_another_model_are_refused(tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    recorded_gradients(tmp_path / "other", width=5)
    ms.set_context(mode=getattr(ms, mode))
    capsys.readouterr()

    said = refused(tmp_path / "run", Training(), capsys, gradients_from=str(tmp_path / "other"))

    assert "the gradients do not fit the model" in said


@pytest.mark.slow
def test_a_compiled_function_that_updates_gets_none(
    tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded_gradients(tmp_path / "other")
    ms.set_context(mode=getattr(ms, mode))
    capsys.readouterr()
    training = Training(kind=nn.SGD)
    net, optimizer = training.net, training.optimizer
    differentiated = ms.value_and_grad(lambda ids: net(ids).sum(), None, optimizer.parameters)

    @ms.jit
    def step(ids: Any) -> Any:
        loss, gradients = differentiated(ids)
        optimizer(gradients)
        return loss

    training.go = lambda: step(batches()[0])  # type: ignore[method-assign]

    said = refused(tmp_path / "run", training, capsys, gradients_from=str(tmp_path / "other"))

    assert "gradients cannot be put into step" in said


@pytest.mark.slow
def test_a_recording_without_gradients_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    imposed(tmp_path / "other", Training())

    with pytest.raises(SystemExit) as ended:
        imposed(tmp_path / "run", Training(), gradients_from=str(tmp_path / "other"))

    assert ended.value.code == 2
    assert "the recording holds no gradients" in capsys.readouterr().err


def test_digests_of_operators_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        imposed(tmp_path / "run", Training(), op_bits=True)

    assert ended.value.code == 2
    assert "digests of operators are not taken of MindSpore programs" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_that_no_function_names_is_the_one_that_watch_was_given(
    tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved_by(tmp_path / "first", Training(seed=0))
    hidden = {"net": Training(seed=1)}

    def forward(ids: Any) -> Any:
        return nn.CrossEntropyLoss()(hidden["net"].net(ids), (ids + 1) % WORDS)

    def go(*models: Any) -> None:
        optimizer = hidden["net"].optimizer
        with hypocenter.watch(
            *models, out=str(tmp_path / f"run{len(models)}"), initial_weights=str(tmp_path / "first")
        ):
            _, gradients = ms.value_and_grad(forward, None, optimizer.parameters)(batches()[0])
            if not models:
                optimizer(gradients)

    if mode == "GRAPH_MODE":
        with pytest.raises(SystemExit) as ended:
            go()
        assert ended.value.code == 2
        assert "there is no model to put weights into" in capsys.readouterr().err

    go(hidden["net"].net)

    before = values(Training(seed=0).net)
    assert all(np.array_equal(before[name], now) for name, now in values(hidden["net"].net).items())
