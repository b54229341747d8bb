"""Common corruptions: what cameras, weather and files do to images, 15 + 4 kinds at five severities.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
2019. `corrupt(x, "fog", severity=3, seed=0)` makes them in batches, on any device, at any size from 28 x 28,
gray or color, instead of fetching sets of files.

- **Constants** are the published ones (`tables`): those of CIFAR-10-C for small images, of ImageNet-C for
  large ones. The nearer table is chosen, unless `table` is given (32 or 224).
- **Eight bits.** The published sets are 8-bit files: values are rounded to k/255 on the way in and cut to
  k/255 on the way out, as there. No gradient flows.
- **Random numbers** depend on (seed, id, corruption, severity) alone. The corrupted image is bit-identical
  in any batch.
- **Frost** needs pictures of ice, and the official ones have no stated license. By default they are grown
  (`ice`), with the brightness and contrast of the photographs; `frost_textures=folder` uses the official
  files. Say which, wherever a number on frost is quoted.
- **Kept**, because the published sets have it: glass blur copies pixels where it means to swap them, fog's
  roughness is squared, and a gray pixel turns red when its saturation is raised by an offset.
- **Changed**: motion blur is that of the package `imagecorruptions` (ImageMagick's arithmetic without
  ImageMagick), as is the elastic transform at 224; water spatter takes exact instead of approximate
  distances. One-channel images, which the published code turns into color, stay gray, and `saturate` leaves
  them as they are.
- **Where it misleads**: severity is a name, not a measure. By the published constants the distance from the
  original does not always grow with it: not for elastic, saturate and spatter, nor for glass blur (whose
  stronger smoothing mends displaced pixels) and frost (whose darker mixtures come nearer to dark images).

Speed against `imagecorruptions`: `benchmarks/corruptions.py`.
"""

from trimtab.data.corruptions.apply import corrupt
from trimtab.data.corruptions.files import write_cifar10_c
from trimtab.data.corruptions.tables import CORRUPTIONS, EXTRA_CORRUPTIONS

__all__ = ["CORRUPTIONS", "EXTRA_CORRUPTIONS", "corrupt", "write_cifar10_c"]
