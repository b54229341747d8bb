"""What every measurement shares, whatever it measures.

guard        restore the model after the block, bit for bit
inputs       check models, images, labels and logits; does an image's output depend on the rest of its batch?
fingerprint  hash a model or a method: what a result depends on
source       hash the source files of a model's own code
torchscript  hash the code, constants and tensors of TorchScript
memory       how many images fit into a given memory
oom          recognize that memory ran out, and retry with half the batch
"""

from trimtab._bfloat16 import require_bfloat16, require_usable
from trimtab.runtime.guard import guard, unwrap
from trimtab.runtime.inputs import (
    PROBE,
    check_call,
    check_classes,
    check_images,
    check_labels,
    check_pairs,
    couples_batch,
    declares_coupling,
    is_misclassified,
    require_dtype,
    require_logits,
)
from trimtab.runtime.memory import images_within
from trimtab.runtime.oom import call_in_parts, is_out_of_memory, retry_halved

__all__ = [
    "PROBE", "call_in_parts", "check_call", "check_classes", "check_images", "check_labels", "check_pairs",
    "couples_batch", "declares_coupling", "guard", "images_within", "is_misclassified", "is_out_of_memory",
    "require_bfloat16", "require_dtype", "require_logits", "require_usable", "retry_halved", "unwrap",
]  # fmt: skip
