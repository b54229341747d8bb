"""Classifiers: from where they come, in pixel space, cut in two, and the papers' networks.

sources        load, and the grammar `net: timm: torchvision: py: file: zoo:` (taken apart in `grammar`)
architectures  what builds a network that is named by text
stored         what builds and fills a network from a file: ours, a folder of the hub, a state dict
files          save, and reading checkpoints without running anything in them
layouts        other people's names for the tensors of networks that we can build
hub            folders in the layout of the Hugging Face hub, read and written for timm
guess          which network the tensors of a state dict are of
pixels         the wrapper that normalizes inside and carries the InputSpec
check          is the input what the model expects? normalized twice, or never?
export         stock state dicts, torch.export programs and ONNX graphs, checked before they are placed
cut            front and tail at a named place; the penultimate feature
networks       the papers' networks by name, on resnet, preact, wide_resnet, vgg and their style
"""

from trimtab.models.check import check_input
from trimtab.models.cut import cut, cuts, drop_norm, penultimate
from trimtab.models.export import export
from trimtab.models.files import save
from trimtab.models.hub import to_timm
from trimtab.models.networks import build
from trimtab.models.pixels import Origin, Pixels, wrap
from trimtab.models.sources import has_record, load, parse

__all__ = [
    "Origin", "Pixels", "build", "check_input", "cut", "cuts", "drop_norm", "export", "has_record", "load",
    "parse", "penultimate", "save", "to_timm", "wrap",
]  # fmt: skip
