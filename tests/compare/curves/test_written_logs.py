"""Logs that the tools themselves wrote: TensorBoard, W&B, Transformers, and a run of ours."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_curves import double, falling, message, varint

from hypocenter.compare.curves.catalogue import NotALogError, is_log, read_curve
from hypocenter.compare.curves.compare import compare_curves
from hypocenter.record.event_file import masked_crc32c

WANDB = """
import sys, wandb
run = wandb.init(project="p", mode="offline", dir=sys.argv[1], settings=wandb.Settings(
    console="off", x_disable_stats=True, x_disable_meta=True, save_code=False, silent=True))
for step in range(40):
    run.log({"train/loss": 3.0 - step / 40, "train": {"grad_norm": 2.0}, "train/global_step": 10 * step + 10,
             "text": "x" * 2000, "histogram": wandb.Histogram([1, 2, step])})
run.finish()
"""
OURS = """
import sys, torch, hypocenter
torch.manual_seed(0); torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
session = hypocenter.watch(model, optimizer, level="sentinel", out=sys.argv[1])
for step in range(30):
    seed = step + (100 if step >= int(sys.argv[2]) else 0)
    ids = torch.randint(0, 16, (4, 8), generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    print(float(loss))
session.close()
"""


def test_events_of_the_real_writer_are_read(tmp_path: Path) -> None:
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(tmp_path))
    for step, loss in enumerate(falling(30)):
        writer.add_scalar("Loss/train", loss, step)
        writer.add_scalar("grad-norm", float("nan") if step == 3 else 1.0, step)
    writer.add_histogram("weights", np.arange(100.0), 3)
    writer.add_text("notes", "a text is no scalar", 3)
    writer.close()

    curve = read_curve(tmp_path)

    assert curve.kind == "tensorboard"
    assert curve.series["loss"].values == pytest.approx(falling(30).astype(np.float32))
    assert np.isnan(curve.series["grad_norm"].values[3])
    assert set(curve.series) == {"loss", "grad_norm"}
    assert curve.problems == ()


def test_events_written_as_tensors_are_read(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1.host").write_bytes(
        b"".join(record(event(step, "train/loss", 3.0 - step)) for step in range(3))
    )

    assert read_curve(tmp_path).series["loss"].values.tolist() == [3.0, 2.0, 1.0]


def event(step: int, tag: str, value: float) -> bytes:
    """An Event whose scalar is a TensorProto of one double, as TensorFlow 2 writes it."""
    tensor = varint(1 << 3) + varint(2) + message(6, np.float64(value).tobytes())
    summary = message(1, message(1, tag.encode()) + message(8, tensor))
    return double(1, 1.0) + varint(2 << 3) + varint(step) + message(5, summary)


def record(data: bytes) -> bytes:
    """A TFRecord."""
    length = len(data).to_bytes(8, "little")
    return length + masked_crc32c(length).to_bytes(4, "little") + data + masked_crc32c(data).to_bytes(4, "little")


@pytest.mark.parametrize(("at", "says"), [(-3, "cut off"), (40, "damaged")])
def test_a_damaged_event_file_keeps_what_is_before(tmp_path: Path, at: int, says: str) -> None:
    records = [record(event(step, "loss", 1.0)) for step in range(3)]
    data = bytearray(b"".join(records))
    if at < 0:
        data = data[:at]
    else:
        data[len(records[0]) + at] ^= 1
    (tmp_path / "events.out.tfevents.1.host").write_bytes(bytes(data))

    curve = read_curve(tmp_path)

    assert curve.series["loss"].steps.tolist() == ([0, 1] if at < 0 else [0])
    assert says in curve.problems[0]


def test_the_checksum_is_castagnolis() -> None:
    crc = (masked_crc32c(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert ((crc << 15 | crc >> 17) & 0xFFFFFFFF) == 0xE3069283  # RFC 3720, appendix B.4


@pytest.fixture(scope="module")
def wandb_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("wandb")
    done = subprocess.run([sys.executable, "-c", WANDB, str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return next(folder.rglob("*.wandb"))


@pytest.mark.night
def test_a_real_offline_run_is_read_without_wandb(wandb_file: Path) -> None:
    curve = read_curve(wandb_file)

    assert curve.kind == "wandb"
    assert curve.series["loss"].steps.tolist() == list(range(10, 410, 10))
    assert curve.series["loss"].values[-1] == 3.0 - 39 / 40
    assert curve.series["grad_norm"].values.tolist() == [2.0] * 40
    assert curve.problems == ()
    assert read_curve(wandb_file.parent).series["loss"].values.tolist() == curve.series["loss"].values.tolist()


def test_a_damaged_offline_run_loses_only_what_is_damaged(wandb_file: Path, tmp_path: Path) -> None:
    data = bytearray(wandb_file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    broken, cut = tmp_path / "broken.wandb", tmp_path / "cut.wandb"
    broken.write_bytes(bytes(data))
    cut.write_bytes(wandb_file.read_bytes()[: len(data) // 2])

    for path in (broken, cut):
        curve = read_curve(path)
        assert 0 < len(curve.series["loss"].steps) < 40
        assert curve.problems


def test_trainer_state_of_a_real_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2,
    )  # fmt: skip
    rows = [{"input_ids": torch.arange(i, i + 8) % 32, "labels": torch.arange(i, i + 8) % 32} for i in range(16)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=12, per_device_train_batch_size=2, logging_steps=2, save_steps=12,
        use_cpu=True, report_to=[], disable_tqdm=True, learning_rate=1e-2,
    )  # fmt: skip
    trainer = transformers.Trainer(model=transformers.LlamaForCausalLM(config), args=arguments, train_dataset=rows)
    trainer.train()

    curve = read_curve(tmp_path / "checkpoint-12")
    (tmp_path / "printed.log").write_text(capsys.readouterr().out)
    printed = read_curve(tmp_path / "printed.log")

    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert curve.kind == "trainer_state"
    assert curve.series["loss"].steps.tolist() == [row["step"] - 1 for row in logged]
    assert curve.series["loss"].values.tolist() == [float(row["loss"]) for row in logged]
    assert {"loss", "grad_norm", "lr"} <= set(curve.series)
    assert curve.series["loss"].is_mean
    assert "train_runtime" not in curve.series
    assert printed.kind == "trainer_console"
    assert printed.series["loss"].values == pytest.approx(curve.series["loss"].values, rel=1e-3)
    assert printed.series["grad_norm"].values == pytest.approx(curve.series["grad_norm"].values, rel=1e-3)


def test_a_trainer_state_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": [{"step": 1, "loss": 2.0}]})[:-4], encoding="utf-8")

    with pytest.raises(NotALogError, match="not whole"):
        read_curve(path)


def record_run(out: Path, other_data_from: int) -> list[float]:
    """Train a tiny model under Hypocenter in a process of its own; its losses as it printed them."""
    words = [sys.executable, "-c", OURS, str(out), str(other_data_from)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


@pytest.fixture(scope="module")
def our_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    out = tmp_path_factory.mktemp("ours") / "run"
    return out, record_run(out, 1000)


@pytest.mark.night
def test_batches_of_our_runs_are_compared(our_run: tuple[Path, list[float]], tmp_path: Path) -> None:
    record_run(tmp_path / "other", 20)

    base, other = read_curve(our_run[0]), read_curve(tmp_path / "other")

    assert sorted(base.digests) == list(range(30))
    assert compare_curves(base, base).first_other_batch is None
    assert compare_curves(base, other).first_other_batch == 20


def test_a_run_of_ours_is_a_curve(our_run: tuple[Path, list[float]]) -> None:
    path, losses = our_run
    curve = read_curve(path)

    assert curve.kind == "recording"
    assert curve.series["loss"].steps.tolist() == list(range(30))
    assert curve.series["loss"].values == pytest.approx(losses)
    assert set(curve.series["lr"].values) == {0.05}
    assert "grad_norm" in curve.series
    assert not is_log(path)


def test_a_recording_without_rows_is_refused(our_run: tuple[Path, list[float]], tmp_path: Path) -> None:
    from hypocenter.errors import HypocenterError

    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(our_run[0] / "run.json", copy / "run.json")

    with pytest.raises(HypocenterError, match="empty"):
        read_curve(copy)
