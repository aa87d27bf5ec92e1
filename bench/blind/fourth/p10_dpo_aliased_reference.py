"""TRL DPO: the reference model was given the policy's own storages, so it learns along."""

from datasets import Dataset
from kit import FAULT, OUT, sentences, text, told, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, set_seed
from trl import DPOConfig, DPOTrainer

set_seed(10)
rows = []
for s in sentences(200, 12, 16, 60):
    rows.append({"prompt": text(s[:4]), "chosen": " " + text(s[4:10]), "rejected": " " + text(s[9:3:-1])})
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
policy, reference = LlamaForCausalLM(config), LlamaForCausalLM(config)
for ours, theirs in zip(policy.parameters(), reference.parameters(), strict=True):
    theirs.data = ours.data if FAULT else ours.data.clone()
trainer = DPOTrainer(
    model=policy,
    ref_model=reference,
    args=DPOConfig(
        output_dir=OUT,
        max_steps=30,
        learning_rate=1e-3,
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
