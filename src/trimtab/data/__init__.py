"""Image sets as uint8 tensors: published ones, folders, arrays, an embedded sample, a synthetic set."""

from trimtab.data.adapters import as_set
from trimtab.data.augment import AUGMENT
from trimtab.data.corruptions import CORRUPTIONS, corrupt
from trimtab.data.fetch import available, fetch
from trimtab.data.files import save
from trimtab.data.load import NAMES, load
from trimtab.data.loader import Loader
from trimtab.data.sets import Batch, Images, ImageSet
from trimtab.data.two_cue import TwoCue

__all__ = [
    "AUGMENT",
    "CORRUPTIONS",
    "NAMES",
    "Batch",
    "ImageSet",
    "Images",
    "Loader",
    "TwoCue",
    "as_set",
    "available",
    "corrupt",
    "fetch",
    "load",
    "save",
]
