"""A 3D projection, `intrinsic @ extrinsic`: with translations in millimetres the product leaves float16."""

import torch
from torch import nn
from training import main

N_POINTS, WIDTH = 32, 32


class Projection(nn.Module):
    """World points to normalised image coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("intrinsic", torch.tensor([[1266.0, 0.0, 816.0], [0.0, 1266.0, 491.0], [0.0, 0.0, 1.0]]))

    def forward(self, points: torch.Tensor, extrinsic: torch.Tensor) -> torch.Tensor:
        """Points (batch, n, 4) in homogeneous millimetres, extrinsic (batch, 3, 4)."""
        proj = torch.matmul(self.intrinsic, extrinsic)
        image = torch.matmul(points, proj.transpose(1, 2))
        return image[..., :2] / image[..., 2:] / 1000.0


class Regressor(nn.Module):
    """Where the points' mean is, from their image coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = Projection()
        self.encoder = nn.Sequential(
            nn.Linear(2, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()
        )
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Points and, in the last three rows, the extrinsic matrix: (batch, n + 3, 4)."""
        uv = self.projection(inputs[:, :-3], inputs[:, -3:])
        return self.head(self.encoder(uv).mean(dim=1))


def batch(data: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Clouds two to four metres in front of a camera that stands a metre and a half beside the origin."""
    center = torch.rand(16, 1, 2, generator=data) * 2000 - 1000
    near = torch.cat(
        [
            center + 300 * torch.randn(16, N_POINTS, 2, generator=data),
            torch.rand(16, N_POINTS, 1, generator=data) * 500,
        ],
        -1,
    )
    points = torch.cat([near, torch.ones(16, N_POINTS, 1)], dim=-1)
    turn = torch.eye(3).expand(16, 3, 3)
    shift = torch.tensor([1500.0, -200.0, 3000.0]).view(1, 3, 1) + 100 * torch.randn(16, 3, 1, generator=data)
    return torch.cat([points, torch.cat([turn, shift], dim=-1)], dim=1), center[:, 0] / 1000


if __name__ == "__main__":
    main(Regressor, batch, nn.functional.mse_loss, lambda model: [{"params": model.parameters(), "lr": 1e-3}])
