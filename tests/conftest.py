"""What all tests share. torchvision lacks its compiled operators here; it imports if they are declared."""

import os

import torch

os.environ.setdefault("OMP_NUM_THREADS", "2")

_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
