"""Fourier spectra: at which frequencies a corruption changes images, or a gradient looks at them."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.norm.moments import widest


def spectrum(x: Tensor) -> Tensor:
    """Mean amplitude of the two-dimensional Fourier transform over images and channels, zero in the middle.

    For x (N, C, H, W) an (H, W) map; a corruption's is `spectrum(corrupted - clean)`.
    """
    amplitude = torch.fft.fft2(x.to(widest(x.device)), norm="ortho").abs().mean((0, 1))
    return torch.fft.fftshift(amplitude)


def high_share(x: Tensor) -> float:
    """The share of the energy above half the highest frequency: near 0 for blur, large for noise."""
    amplitude = torch.fft.fft2(x.to(widest(x.device)), norm="ortho").abs()
    energy = torch.fft.fftshift(amplitude.square().mean((0, 1)))
    height, width = energy.shape
    down = (torch.arange(height) - height // 2).abs() > height // 4
    across = (torch.arange(width) - width // 2).abs() > width // 4
    high = down[:, None] | across[None]
    return float(energy[high].sum() / energy.sum())
