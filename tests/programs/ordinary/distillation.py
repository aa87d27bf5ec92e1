"""Knowledge distillation: a frozen teacher, a smaller student, soft and hard targets."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(55)


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(9, 8), nn.Linear(8, 4)

    def forward(self, x):
        z = F.relu(self.fc1(x))  # plant: student
        return self.fc2(z)


teacher = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 4))
teacher.eval()
for param in teacher.parameters():
    param.requires_grad = False
student = Student()
optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)
T, alpha = 2.0, 0.7
for step in range(8):  # turn
    x = torch.randn(32, 9)  # plant: data
    with torch.no_grad():
        teacher_logits = teacher(x)
        soft = F.softmax(teacher_logits / T, dim=-1)  # plant: teacher
        labels = teacher_logits.argmax(1)
    logits = student(x)
    kd = F.kl_div(F.log_softmax(logits / T, dim=-1), soft, reduction="batchmean") * T * T  # plant: kd
    loss = alpha * kd + (1 - alpha) * F.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), kd.item())
