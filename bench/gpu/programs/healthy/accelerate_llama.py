from common import *
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM

acc = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
m = LlamaForCausalLM(
    LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
    )
)
o = torch.optim.AdamW(m.parameters(), lr=1e-3)
dl = torch.utils.data.DataLoader(
    [t for t in tokens(320).cpu()], batch_size=8, shuffle=True, pin_memory=True, num_workers=2
)
m, o, dl = acc.prepare(m, o, dl)
for i, ids in enumerate(dl):
    with acc.accumulate(m):
        loss = m(input_ids=ids, labels=ids).loss
        acc.backward(loss)
        if acc.sync_gradients:
            acc.clip_grad_norm_(m.parameters(), 1.0)
        o.step()
        o.zero_grad()
        said(i, loss)
done(m)
