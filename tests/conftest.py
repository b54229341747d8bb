"""What all tests share. torchvision lacks its compiled operators here; it imports if they are declared."""

import torch

torch.set_num_threads(1)  # tests run side by side; threads that wait for each other would only slow them

_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
