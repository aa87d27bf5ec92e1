"""A Trainer of Transformers whose script takes no checkpoint: `python finetune.py --output_dir FOLDER`."""

import torch
import transformers

(arguments,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_args_into_dataclasses()
arguments.max_steps, arguments.save_steps = 24, 20
torch.manual_seed(0)
config = transformers.LlamaConfig(
    hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64
)
rows = torch.randint(0, 64, (32, 8))
data = [{"input_ids": row, "labels": row} for row in rows]
transformers.Trainer(transformers.LlamaForCausalLM(config), arguments, train_dataset=data).train()
