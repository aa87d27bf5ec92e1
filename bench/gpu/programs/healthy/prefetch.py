from common import *

m = GPT(n=2).to(D)
o = torch.optim.Adam(m.parameters(), lr=1e-3)
st = torch.cuda.Stream()
host = [t.pin_memory() for t in tokens(200).cpu().split(8)]
with torch.cuda.stream(st):
    nxt = host[0].to(D, non_blocking=True)
for i in range(24):
    torch.cuda.current_stream().wait_stream(st)
    ids = nxt
    ids.record_stream(torch.cuda.current_stream())
    with torch.cuda.stream(st):
        nxt = host[i + 1].to(D, non_blocking=True)
    loss = lm_loss(m(ids), ids)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
done(m)
