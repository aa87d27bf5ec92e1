from common import *
from transformers import T5Config, T5ForConditionalGeneration

m = T5ForConditionalGeneration(
    T5Config(d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, vocab_size=512, decoder_start_token_id=0)
).to(D)
from transformers import Adafactor

o = Adafactor(m.parameters(), scale_parameter=True, relative_step=True, warmup_init=True)
for i in range(20):
    ids = tokens(8, 32)
    with torch.autocast(D, torch.bfloat16):
        loss = m(input_ids=ids, labels=ids.flip(1)).loss
    loss.backward()
    o.step()
    o.zero_grad()
    said(i, loss)
done(m)
