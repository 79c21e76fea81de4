"""A law as it reaches the features: sampled on their grid, or on a coarser base grid and resized."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from chaosgate.field import Grid, MaxEntLaw
from chaosgate.field.white import Noise


class DeployedField:
    r"""Log-fields on a feature grid, drawn from a law on the same or on another grid.

    When the grids differ, the *log-field* is resized (bilinear, a linear map :math:`R`), so it stays Gaussian with
    covariance :math:`RCR^\top`; its variance map is computed exactly from that, not guessed (paper app. G.3).

    Args:
        law: The law of the field that is sampled.
        grid: (H, W) of the features.
    """

    def __init__(self, law: MaxEntLaw, grid: Grid) -> None:
        self.law = law
        self.grid = grid
        self._variance: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        exact = torch.as_tensor(law.variance, dtype=torch.float64)
        if law.grid != grid:
            sites = law.grid[0] * law.grid[1]
            basis = torch.eye(sites, dtype=torch.float64).view(sites, *law.grid)
            exact = self._resized(law.color(basis)[:, None]).square().sum((0, 1))
        self._exact_variance = exact
        self.mean_variance = float(exact.mean())

    def variance(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Site variances (H, W)."""
        at = (device, dtype)
        if at not in self._variance:
            self._variance[at] = self._exact_variance.to(device=device, dtype=dtype)
        return self._variance[at]

    def sample(self, noise: Noise, batch: int, channels: int, dtype: torch.dtype) -> Tensor:
        """Independent fields (batch, channels, H, W)."""
        psi = self.law.color(noise.normal((batch, channels, *self.law.grid), dtype))
        return psi if self.law.grid == self.grid else self._resized(psi)

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        """Fill the caches."""
        self.variance(dtype, device)
        self.law.color(torch.zeros(1, 1, *self.law.grid, dtype=dtype, device=device))

    def _resized(self, psi: Tensor) -> Tensor:
        return interpolate(psi, size=self.grid, mode="bilinear", align_corners=False)
