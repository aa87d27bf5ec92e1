"""An encoder-decoder of transformers: sequences in, the same sequences reversed out. Decoder inputs are given by the program."""

import torch
from kit import FAULT, metric, tell, words
from transformers import BartConfig, BartForConditionalGeneration, get_cosine_schedule_with_warmup, set_seed
from transformers.models.bart.modeling_bart import shift_tokens_right

set_seed(307)
VOCABULARY, LENGTH = 24, 8
PAD, START, END = 0, 1, 2
source = words(800, LENGTH, VOCABULARY, seed=7)
target = torch.cat([source.flip(1), torch.full((800, 1), END)], dim=1)
g = torch.Generator().manual_seed(7)
cut = torch.randint(5, LENGTH + 2, (800,), generator=g)
target = target.masked_fill(torch.arange(LENGTH + 1)[None] >= cut[:, None], PAD)

model = BartForConditionalGeneration(
    BartConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=16,
        dropout=0.0,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        init_std=0.05,
    )
)


def collate(rows):
    src = torch.stack([r[0] for r in rows])
    tgt = torch.stack([r[1] for r in rows])
    batch = {"input_ids": src, "attention_mask": torch.ones_like(src), "labels": tgt.masked_fill(tgt == PAD, -100)}
    if FAULT:
        batch["decoder_input_ids"] = tgt
    else:
        batch["decoder_input_ids"] = shift_tokens_right(tgt, PAD, START)
    batch["decoder_attention_mask"] = (tgt != PAD).long()
    return batch


dataset = torch.utils.data.TensorDataset(source[:704], target[:704])
loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True, collate_fn=collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
schedule = get_cosine_schedule_with_warmup(optimizer, 6, 66)
losses = []
model.train()
for epoch in range(3):
    for batch in loader:
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())

model.eval()
with torch.no_grad():
    labels = target[704:].masked_fill(target[704:] == PAD, -100)
    metric("loss_as_decoded", model(input_ids=source[704:], labels=labels).loss)
tell(model, losses)
