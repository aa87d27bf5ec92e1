"""TRL reward model: "train the last layer and the head" leaves the head out, since it is called score."""

from datasets import Dataset
from kit import FAULT, OUT, sentences, text, told, tokenizer
from transformers import LlamaConfig, LlamaForSequenceClassification, set_seed
from trl import RewardConfig, RewardTrainer

set_seed(12)
rows = []
for s in sentences(200, 12, 16, 60):
    rows.append({"prompt": text(s[:4]), "chosen": " " + text(s[4:10]), "rejected": " " + text(s[9:3:-1])})
config = LlamaConfig(
    vocab_size=60,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    pad_token_id=0,
    bos_token_id=2,
    eos_token_id=1,
    max_position_embeddings=64,
    num_labels=1,
)
model = LlamaForSequenceClassification(config)
head = ("layers.2.", "lm_head") if FAULT else ("layers.2.", "score")
for name, p in model.named_parameters():
    p.requires_grad = any(part in name for part in head)
trainer = RewardTrainer(
    model=model,
    args=RewardConfig(
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
