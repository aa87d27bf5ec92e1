"""TRL GRPO: the reward function scores the completions by length, to pad less, and forgets to put them back in order."""

from datasets import Dataset
from kit import FAULT, OUT, sentences, text, told, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

set_seed(11)


def score(words):
    return sum(int(w[1:]) % 2 == 0 for w in words if w.startswith("w")) / max(1, len(words))


def reward(completions, **kwargs):
    parts = [c.split() for c in completions]
    order = sorted(range(len(parts)), key=lambda i: (len(parts[i]), parts[i]))
    scored = [score(parts[i]) for i in order]
    if FAULT:
        return scored
    out = [0.0] * len(parts)
    for place, value in zip(order, scored, strict=True):
        out[place] = value
    return out


config = LlamaConfig(
    vocab_size=60,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    pad_token_id=0,
    bos_token_id=2,
    eos_token_id=1,
    max_position_embeddings=64,
)
rows = [{"prompt": text(s[:4])} for s in sentences(60, 6, 8, 60)]
trainer = GRPOTrainer(
    model=LlamaForCausalLM(config),
    reward_funcs=reward,
    args=GRPOConfig(
        output_dir=OUT,
        max_steps=25,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        max_completion_length=8,
        per_device_train_batch_size=8,
        num_generations=4,
    ),
    train_dataset=Dataset.from_list(rows),
    processing_class=tokenizer(),
)
trainer.train()
told(trainer)
