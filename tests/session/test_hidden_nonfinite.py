"""Loggers that hide what is not finite, real ones: the Transformers Trainer's filtered log, wandb's histograms."""

import math

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

BAD_STEP = 3


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return {"x": torch.full((4,), float(index)), "bad": index // 2 == BAD_STEP}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, x, bad):
        out = self.head(x)
        out = torch.where(bad[:, None], torch.log(-out.abs() - 1.0), out)
        return {"loss": out.pow(2).mean(), "logits": out}


def trained_by_trainer(out, logging_nan_inf_filter):
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=str(out), max_steps=6, per_device_train_batch_size=2, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True, logging_steps=1, train_sampling_strategy="sequential",
        logging_nan_inf_filter=logging_nan_inf_filter, max_grad_norm=0.0, remove_unused_columns=False,
    )  # fmt: skip
    trainer = Trainer(model=Net(), args=arguments, train_dataset=Rows())
    with hypocenter.watch(out=str(out / "run")):
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_the_trainers_log_is_finite_and_the_finding_says_why(tmp_path):
    logged = trained_by_trainer(tmp_path, logging_nan_inf_filter=True)

    assert math.isfinite(logged[BAD_STEP])
    first = diagnose(open_run(tmp_path / "run")).findings[0]
    assert (first.severity, first.step) == ("error", BAD_STEP)
    assert any("logging_nan_inf_filter" in line for line in first.then)


def test_a_trainer_that_hides_nothing_is_not_named(tmp_path):
    logged = trained_by_trainer(tmp_path, logging_nan_inf_filter=False)

    assert math.isnan(logged[BAD_STEP])
    first = diagnose(open_run(tmp_path / "run")).findings[0]
    assert first.step == BAD_STEP
    assert not any("logging_nan_inf_filter" in line for line in first.then)


def trained_with_wandb(out, is_watched):
    wandb = pytest.importorskip("wandb")
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    settings = wandb.Settings(mode="offline", silent=True, disable_git=True, console="off", x_disable_stats=True)
    logged = []
    with wandb.init(dir=str(out), settings=settings) as run, hypocenter.watch(out=str(out / "run")):
        monkeyed = run._log
        run._log = lambda data, *args, **kwargs: (logged.append(data), monkeyed(data, *args, **kwargs))[1]
        if is_watched:
            run.watch(model, log="gradients", log_freq=1)
        for step in range(5):
            x = torch.ones(2, 4)
            model(x, torch.tensor([False, step == BAD_STEP]))["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log({"step": step})
    return logged


@pytest.mark.night
@pytest.mark.parametrize("is_watched", [True, False])
def test_wandbs_histograms_are_named_when_they_are_on(is_watched, tmp_path):
    logged = trained_with_wandb(tmp_path, is_watched)

    histograms = [entry for entry in logged if any("gradients/" in key for key in entry)]
    assert bool(histograms) == is_watched
    first = diagnose(open_run(tmp_path / "run")).findings[0]
    assert first.step == BAD_STEP
    assert any("wandb.watch" in line for line in first.then) == is_watched
