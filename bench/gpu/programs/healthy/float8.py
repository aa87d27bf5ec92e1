from common import *


class FP8(torch.autograd.Function):
    @staticmethod
    def forward(c, x, w):
        c.save_for_backward(x, w)
        sx, sw = x.abs().max() / 448, w.abs().max() / 448
        return torch._scaled_mm(
            (x / sx).to(torch.float8_e4m3fn),
            (w / sw).to(torch.float8_e4m3fn).t(),
            sx.float(),
            sw.float(),
            out_dtype=torch.bfloat16,
        )

    @staticmethod
    def backward(c, g):
        x, w = c.saved_tensors
        return g @ w, g.t() @ x


class L(nn.Linear):
    def forward(self, x):
        return (
            FP8.apply(x.flatten(0, -2).bfloat16(), self.weight.bfloat16()).view(*x.shape[:-1], -1).to(x.dtype)
            + self.bias
        )


m = GPT(n=2)
for b in m.blocks:
    b.up, b.down = L(128, 512), L(512, 128)
m.to(D)
o = torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True)
for i in range(20):
    ids = tokens()
    loss = lm_loss(m(ids), ids)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
done(m)
