"""The Transformers callback on a real Trainer."""

import torch

import hypocenter
from hypocenter.record.reader import open_run


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(1, 50, (8,), generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones(8, dtype=torch.long), "labels": index % 2}


def test_a_trainer_run_is_recorded_from_train_to_its_end(tmp_path, capsys):
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    callback = hypocenter.TransformersCallback(level="modules")

    model = BertForSequenceClassification(config)
    model.accepts_loss_kwargs = False  # its loss is a mean, which else nobody divides (HC232)
    Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[callback]).train()

    run = open_run(tmp_path / "hypocenter")
    assert [(s.step, s.n_microbatches) for _, s in run.step_records()] == [(0, 2), (1, 2), (2, 2)]
    assert "bert.encoder.layer.0.attention.self.query" in run.sites()
    assert run.evidence_files() == []
    assert f"hypocenter: healthy in 3 steps; more: hypocenter check {tmp_path}/hypocenter" in capsys.readouterr().err
