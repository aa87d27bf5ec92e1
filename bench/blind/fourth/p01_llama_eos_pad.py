"""Llama, Trainer: pad is eos, so the stock collator drops every end of sentence from the labels."""

from kit import FAULT, arguments, sentences, told, tokenizer
from transformers import DataCollatorForLanguageModeling, LlamaConfig, LlamaForCausalLM, Trainer, set_seed

set_seed(1)
tok = tokenizer()
if FAULT:
    tok.pad_token = tok.eos_token
config = LlamaConfig(
    vocab_size=60,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    pad_token_id=tok.pad_token_id,
    bos_token_id=2,
    eos_token_id=1,
)
rows = [{"input_ids": words + [1]} for words in sentences(300, 5, 14, 60)]
trainer = Trainer(
    model=LlamaForCausalLM(config),
    args=arguments(),
    train_dataset=rows,
    data_collator=DataCollatorForLanguageModeling(tok, mlm=False),
)
trainer.train()
told(trainer)
