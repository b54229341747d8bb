"""Fourier spectra of corruptions and gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from trimtab.norm.moments import widest


def spectrum(x: Tensor) -> Tensor:
    """Return the mean amplitude of the 2D Fourier transform over images and channels, zero in the center.

    For x (N, C, H, W) it is (H, W); that of a corruption is `spectrum(corrupted - clean)`.
    """
    amplitude = torch.fft.fft2(x.to(widest(x.device)), norm="ortho").abs().mean((0, 1))
    return torch.fft.fftshift(amplitude)


def high_frequency_fraction(x: Tensor) -> float:
    """Return the fraction of energy above half the highest frequency: near 0 for blur, large for noise."""
    amplitude = torch.fft.fft2(x.to(widest(x.device)), norm="ortho").abs()
    energy = torch.fft.fftshift(amplitude.square().mean((0, 1)))
    height, width = energy.shape
    vertical = (torch.arange(height) - height // 2).abs() > height // 4
    horizontal = (torch.arange(width) - width // 2).abs() > width // 4
    high = vertical[:, None] | horizontal[None]
    return float(energy[high].sum() / energy.sum())
