"""GPT-2, Trainer: the dataset shifts the labels, and the model shifts them again."""

import torch
from kit import FAULT, arguments, sentences, told
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, set_seed

set_seed(2)


class Blocks(torch.utils.data.Dataset):
    def __init__(self, width=17):
        flat = [w for s in sentences(400, 10, 30, 64) for w in s]
        self.rows = [flat[i : i + width] for i in range(0, len(flat) - width, width)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        block = torch.tensor(self.rows[i])
        if FAULT:
            return {"input_ids": block[:-1], "labels": block[1:]}
        return {"input_ids": block[:-1], "labels": block[:-1]}


model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=48, n_layer=2, n_head=4))
trainer = Trainer(model=model, args=arguments(), train_dataset=Blocks())
trainer.train()
told(trainer)
