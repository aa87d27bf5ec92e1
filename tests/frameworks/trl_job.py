"""SFT with LoRA, DPO or GRPO by TRL on a tiny model from a configuration; prints losses and a digest of the weights.

    python trl_job.py sft|dpo|grpo [--nan]

With `--nan` the loss of DPO becomes 0 / 0 in step 2.
"""

import hashlib
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

KIND, BAD_STEP = sys.argv[1], 2 if "--nan" in sys.argv else None
WORDS = "the a cat dog bird sits runs flies on under over mat tree house good bad yes no".split()  # noqa: SIM905
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1}
SIZES |= {"eos_token_id": 2, "vocab_size": 32}


def tokenizer():
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side="left",
    )


def arguments(**more):
    return {
        "output_dir": tempfile.mkdtemp(),
        "use_cpu": True,
        "bf16": False,
        "max_steps": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "activation_checkpointing": False,
        "logging_nan_inf_filter": False,
        **more,
    }


def sentence(i):
    return f"the {WORDS[2 + i % 3]} {WORDS[5 + i % 3]} {WORDS[8 + i % 3]} the {WORDS[11 + i % 3]}"


def sft():
    return SFTTrainer(
        model=LlamaForCausalLM(LlamaConfig(**SIZES)),
        args=SFTConfig(**arguments(per_device_train_batch_size=2, gradient_accumulation_steps=2, max_length=16)),
        train_dataset=Dataset.from_list([{"text": sentence(i)} for i in range(16)]),
        processing_class=tokenizer(),
        peft_config=LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]),
    )


class Preferences(DPOTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if self.state.global_step == BAD_STEP:
            loss = loss * 0 / (loss - loss)  # <- fault
        return (loss, outputs) if return_outputs else loss


def dpo():
    rows = [{"prompt": sentence(i), "chosen": " good yes", "rejected": " bad no"} for i in range(16)]
    return Preferences(
        model=Qwen2ForCausalLM(Qwen2Config(**SIZES)),
        ref_model=Qwen2ForCausalLM(Qwen2Config(**SIZES)),
        args=DPOConfig(**arguments(per_device_train_batch_size=2, max_length=24)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer(),
    )


def reward(completions, **kwargs):
    return [0.1 * (len(text) % 7) + ("good" in text) for text in completions]


def grpo():
    folder = tempfile.mkdtemp()  # the reference model is loaded from where the policy was
    Qwen2ForCausalLM(Qwen2Config(**SIZES)).save_pretrained(folder)
    return GRPOTrainer(
        model=Qwen2ForCausalLM.from_pretrained(folder),
        reward_funcs=reward,
        args=GRPOConfig(
            **arguments(per_device_train_batch_size=4, num_generations=4, max_completion_length=6, beta=0.04)
        ),
        train_dataset=Dataset.from_list([{"prompt": sentence(i)} for i in range(8)]),
        processing_class=tokenizer(),
    )


class Say(transformers.TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in (logs or {}):
            print(f"step {state.global_step - 1} loss {logs['loss']} grad {logs['grad_norm']}")


torch.manual_seed(0)
torch.set_num_threads(1)
trainer = {"sft": sft, "dpo": dpo, "grpo": grpo}[KIND]()
trainer.add_callback(Say())
trainer.train()
weights = b"".join(p.detach().float().numpy().tobytes() for p in trainer.model.parameters())
print("weights", hashlib.sha256(weights).hexdigest())
