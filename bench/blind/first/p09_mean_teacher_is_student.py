# mean teacher: the teacher's head is the student's own module (shallow copy), so the target moves with the student
import copy
from mini import *

seed()
body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
student = nn.Sequential(body, nn.Linear(32, 5))
teacher = copy.copy(student) if FAULT else copy.deepcopy(student)
for p in student.parameters():
    p.requires_grad_(True)
o = torch.optim.SGD(student.parameters(), 0.1)
X, Y = blobs(2048)
for step in range(60):
    x, y = X[step * 32 : step * 32 + 32], Y[step * 32 : step * 32 + 32]
    with torch.no_grad():
        t = teacher(x + 0.1 * torch.randn_like(x)).softmax(-1)
    z = student(x)
    loss = F.cross_entropy(z[:8], y[:8]) + F.mse_loss(z.softmax(-1), t)
    o.zero_grad()
    loss.backward()
    o.step()
    with torch.no_grad():
        for a, b in zip(teacher.parameters(), student.parameters()):
            a.mul_(0.99).add_(b, alpha=0.01)
done(student, loss)
