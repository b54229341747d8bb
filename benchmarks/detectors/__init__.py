"""Validate the trust card's detectors on planted faults: `python -m benchmarks.detectors`."""

import torch

# torchvision's wheel for another build of torch imports only if these operators are declared.
_operators = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
