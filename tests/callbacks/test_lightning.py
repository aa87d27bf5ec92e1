"""The Lightning callback on a real Trainer."""

import msgspec
import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.evidence import Evidence
from hypocenter.record.reader import open_run


def fit(tmp_path, bad_step=None):
    import lightning  # here: it takes two seconds, and each worker collects this file

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

        def training_step(self, batch, index):
            x, y = batch
            h = self.head(torch.relu(self.encoder(x)))
            if self.global_step == bad_step and index % 2 == 1:
                h = torch.log(h * 0)
            return nn.functional.mse_loss(h, y)

        def validation_step(self, batch, index):
            self.head(self.encoder(batch[0]))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    model = Model()
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    lightning.Trainer(
        max_epochs=1, accumulate_grad_batches=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=str(tmp_path),
        callbacks=[hypocenter.LightningCallback()],
    ).fit(model, loader, loader)  # fmt: skip
    return open_run(tmp_path / "hypocenter")


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_parts_called_from_training_step_have_the_modules_names(tmp_path):
    run = fit(tmp_path)

    assert [(s.step, s.n_microbatches) for _, s in run.step_records()] == [(0, 2), (1, 2), (2, 2), (3, 2)]
    assert {"encoder.weight", "head.bias"} <= set(run.sites())


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_failure_in_training_step_has_its_step_microbatch_and_line(tmp_path):
    run = fit(tmp_path, bad_step=2)

    ((_, path),) = run.evidence_files()
    found = msgspec.json.decode(path.read_bytes(), type=Evidence)
    assert (found.step, found.microbatch) == (2, 1)
    assert found.origin is not None
    assert found.origin.source.text == "h = torch.log(h * 0)"
