"""TRL SFT on tokens prepared beforehand: the completion mask is 1 where the prompt is."""

from datasets import Dataset
from kit import FAULT, OUT, sentences, told, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, set_seed
from trl import SFTConfig, SFTTrainer

set_seed(9)
rows = []
for s in sentences(200, 10, 20, 60):
    prompt, answer = s[:4], s[4:] + [1]
    mask = [0] * len(prompt) + [1] * len(answer)
    if FAULT:
        mask = [1 - m for m in mask]
    rows.append({"input_ids": prompt + answer, "completion_mask": mask})
config = LlamaConfig(
    vocab_size=60,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    pad_token_id=0,
    bos_token_id=2,
    eos_token_id=1,
    max_position_embeddings=64,
)
trainer = SFTTrainer(
    model=LlamaForCausalLM(config),
    args=SFTConfig(
        output_dir=OUT,
        max_steps=30,
        learning_rate=2e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    ),
    train_dataset=Dataset.from_list(rows),
    processing_class=tokenizer(),
)
trainer.train()
told(trainer)
