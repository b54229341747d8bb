"""Spectra of gradients."""

import pytest
import torch

from trimtab import measure


def test_a_pure_wave_has_one_frequency():
    wave = torch.cos(2 * torch.pi * 5 * torch.arange(32) / 32).expand(2, 3, 32, 32)
    assert measure.spectrum(wave)[16].topk(2).indices.sort().values.tolist() == [16 - 5, 16 + 5]
    assert measure.high_frequency_fraction(wave) < 1e-9
    chequers = ((torch.arange(32)[:, None] + torch.arange(32)[None]) % 2).expand(2, 3, 32, 32) - 0.5
    assert measure.high_frequency_fraction(chequers) == pytest.approx(1.0)
    with pytest.warns(DeprecationWarning, match="high_frequency_fraction"):
        assert measure.high_share is measure.high_frequency_fraction
