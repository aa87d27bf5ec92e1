# transformers collator with pad_token = eos_token: the end of a sequence is never learned
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, DataCollatorForLanguageModeling
from torch.utils.data import DataLoader
from c import FAULT, seed, final

seed()
vocab = {f"w{i}": i for i in range(40)}
vocab["<eos>"] = 40
vocab["<pad>"] = 41
vocab["<unk>"] = 42
t = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tok = PreTrainedTokenizerFast(
    tokenizer_object=t, eos_token="<eos>", unk_token="<unk>", pad_token="<eos>" if FAULT else "<pad>"
)
g = torch.Generator().manual_seed(1)
texts = [
    " ".join(f"w{int(w)}" for w in torch.randint(0, 40, (int(torch.randint(5, 20, (), generator=g)),), generator=g))
    + " <eos>"
    for _ in range(160)
]
data = [tok(x) for x in texts]
data = [{"input_ids": d["input_ids"], "attention_mask": d["attention_mask"]} for d in data]
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=43, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
)
opt = torch.optim.AdamW(model.parameters(), 2e-3)
for step, batch in enumerate(DataLoader(data, 8, collate_fn=DataCollatorForLanguageModeling(tok, mlm=False))):
    loss = model(**batch).loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, model)
