"""Write my-model, a tiny policy with its tokenizer, from a configuration."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "the", "a", "cat", "dog", "bird", "sits", "runs", "on", "mat", "tree"]
made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(
    tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>", padding_side="left"
).save_pretrained("my-model")  # fmt: skip
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
tokens = {"vocab_size": len(WORDS), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
Qwen2ForCausalLM(Qwen2Config(**sizes, **tokens, num_key_value_heads=2)).save_pretrained("my-model")
