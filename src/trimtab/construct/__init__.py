"""Image sets constructed with models: robust and non-robust features, and AdvBN images.

features       D_R, D_NR: images with the penultimate features of other images
labels         D_rand, D_det, D_conflict: images relabeled by a targeted attack
build          any of them over a whole set, resumable, saved as npz with its provenance
transfer       accuracy of each target network on the features of each source network
autoencoder    an encoder cut from any classifier, and a decoder trained for it
advbn_images   encoder, AdvBN on its features, decoder: AdvBN as images
"""

from trimtab.construct.advbn_images import AdvBNImages
from trimtab.construct.autoencoder import Autoencoder, Decoder, train_decoder, trained_autoencoder
from trimtab.construct.build import KINDS, Construction, build, construction, place_for, recorded
from trimtab.construct.features import FeatureMatch
from trimtab.construct.labels import Relabeled
from trimtab.construct.transfer import transfer

__all__ = [
    "KINDS", "AdvBNImages", "Autoencoder", "Construction", "Decoder", "FeatureMatch", "Relabeled", "build",
    "construction", "place_for", "recorded", "train_decoder", "trained_autoencoder", "transfer",
]  # fmt: skip
