"""Image sets made with models: robust and non-robust features, and images that AdvBN makes.

features       D_R, D_NR: images whose penultimate feature is another's
labels         D_rand, D_det, D_conflict: images that carry a label only a network can read
build          any of them over a whole set, resumable, saved as npz with its provenance
transfer       features extracted from each source, read by each target
autoencoder    an encoder out of any classifier, and a decoder trained for it
painter        such an encoder and decoder, kept in a file
advbn_images   encoder, AdvBN on its features, decoder: what AdvBN looks like
"""

from trimtab.construct.advbn_images import AdvBNImages
from trimtab.construct.autoencoder import Autoencoder, Decoder, train_decoder
from trimtab.construct.build import KINDS, Construction, build, construction, place_for, recorded
from trimtab.construct.features import FeatureMatch
from trimtab.construct.labels import Relabelled
from trimtab.construct.painter import painter
from trimtab.construct.transfer import transfer

__all__ = [
    "KINDS", "AdvBNImages", "Autoencoder", "Construction", "Decoder", "FeatureMatch", "Relabelled", "build",
    "construction", "painter", "place_for", "recorded", "train_decoder", "transfer",
]  # fmt: skip
