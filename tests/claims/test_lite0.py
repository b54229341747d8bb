"""The claims of adaptive BN on a published network: the claims' own code, judged over images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from scipy import stats

from trimtab import data, norm
from trimtab.evaluate import Noise
from trimtab.models import load

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lite0(monkeypatch):
    """The script, with a small network and set in place of the published ones."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import lite0

    torch.manual_seed(0)
    monkeypatch.setattr(lite0, "loaded", lambda: norm.steer(load("zoo:sample-standard")).eval())
    monkeypatch.setattr(lite0, "photographs", lambda size: data.load("sample", "test"))
    return lite0


def test_rows_and_intervals_are_those_of_the_network_over_images(lite0, tmp_path, capsys):
    out = tmp_path / "lite0.json"
    words = ["--images", "48", "--severities", "5", "--work", str(tmp_path / "work"), "--out", str(out)]
    assert lite0.main([*words, "--claims", "ADA-1", "ADA-8", "ADA-9"]) == 0
    written = json.loads(out.read_text())
    assert (written["images"], written["severities"], set(written["claims"])) == (
        48,
        [5],
        {"ADA-1", "ADA-8", "ADA-9"},
    )
    images = data.load("sample", "test").subset(slice(0, 48))
    with torch.no_grad():
        net, batch = load("zoo:sample-standard").eval(), next(images.batches(48))
        clean = net(batch.x).argmax(1) == batch.y
        noisy = net(Noise(0.5).shown(batch, 0)).argmax(1) == batch.y
        stock = norm.steer(net)
        with norm.use(stock, source="batch", update=False):
            adapted = stock(Noise(0.5).shown(batch, 0)).argmax(1) == batch.y
    rows = written["claims"]["ADA-1"]["rows"]
    assert rows["sigma 0, static"] == pytest.approx(float(clean.double().mean()))
    assert rows["sigma 0.5, static"] == pytest.approx(float(noisy.double().mean()))
    assert rows["sigma 0.5, adapted"] == pytest.approx(float(adapted.double().mean()))
    gains = adapted.double() - noisy.double()
    expected = stats.ttest_1samp(gains.numpy(), 0).confidence_interval(0.95)
    assert written["claims"]["ADA-1"]["contrasts"]["gain under noise"] == pytest.approx(
        [float(gains.mean()), expected.low, expected.high]
    )
    assert written["claims"]["ADA-8"]["contrasts"].keys() == {
        "rho 1 - rho 0",
        "rho 0.7 - rho 0.3",
        "rho 0.7 - rho 1",
    }
    assert "ADA-9  batch of 8 - static" in capsys.readouterr().out


def test_corruptions_are_judged_image_by_image(lite0, tmp_path):
    scale = lite0.replace(
        lite0.DESK, test=16, corrupted=16, severities=(5,), corruptions=("fog", "gaussian_noise"), batch=16
    )
    bench = lite0.Published(scale, 0, tmp_path, model=lite0.loaded())
    for claim, contrast in (("ADA-6", "static, gap - adapted, gap"), ("LIG-13", "adapted - static")):
        effect, low, high = lite0.measured(bench, claim)["contrasts"][contrast]
        assert low <= effect <= high
