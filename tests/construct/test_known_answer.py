"""On images whose cues are known, each construction teaches the cue that it should.

One source network reads only the robust cue (a shape), another only the faint one (a pattern of +-4 levels).
Of images that carry both, D_R must keep what the first reads, and D_rand must write what the second reads.
"""

import pytest
import torch

from trimtab import construct, data, train
from trimtab.data.two_cue import TwoCue

SET = {"classes": 4, "size": 16}
ONLY = {"robust": {"robust": "label", "faint": "random"}, "faint": {"robust": "random", "faint": "label"}}
RECIPE = {
    "model": "net:resnet8,width=8", "data": {"augment": [], "validation": 0}, "optimizer": {"lr": 0.1},
    "schedule": {"kind": "one-cycle"}, "batch_size": 64, "epochs": 10,
}  # fmt: skip


def trained(images, folder):
    return train.fit(None, images, train.read_recipe(RECIPE), folder=folder).model.eval()


def reliance(model):
    """Accuracy on images where only one of the cues tells the label; by chance it would be 0.25."""
    found = {}
    for cue, shows in ONLY.items():
        images = TwoCue(**SET, **shows)("test", 300).images
        with torch.no_grad():
            found[cue] = sum(int((model(x).argmax(1) == y).sum()) for x, y, _ in images.batches(100)) / 300
    return found


@pytest.mark.parametrize(("kind", "cue", "steps"), [("D_R", "robust", 40), ("D_rand", "faint", 20)])
def test_a_network_trained_on_the_construction_relies_on_its_cue(kind, cue, steps, tmp_path):
    source = trained(TwoCue(**SET, **ONLY[cue])("train", 1000).images, tmp_path / "source")
    both = TwoCue(**SET)("train", 1000).images
    file = construct.build(construct.construction(kind, steps=steps), source, both, tmp_path / "made.npz")
    found = reliance(trained(data.load(f"npz:{file}", "train"), tmp_path / "taught"))
    other = "faint" if cue == "robust" else "robust"
    assert found[cue] > 0.8
    assert found[other] < 0.4
