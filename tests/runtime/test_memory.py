"""The count of what fits is that of the tensors that autograd keeps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trimtab.attacks import guard
from trimtab.attacks.base import MEMORY, prepare
from trimtab.runtime import images_within
from trimtab.runtime.memory import PROGRAM, kept_bytes


class Exponentials(nn.Module):
    """Of which autograd keeps each result: 4 bytes for every pixel and layer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.layers):
            x = torch.exp(-x)
        return x.mean((2, 3))


def test_kept_bytes_are_those_of_each_result() -> None:
    x = torch.rand(3, 2, 8, 8)
    assert kept_bytes(Exponentials(5), x) == (5 * x.nbytes, x.nbytes)


def test_tensors_of_the_network_do_not_count() -> None:
    net, x = nn.Conv2d(3, 4, 1, bias=False).requires_grad_(False), torch.rand(1, 3, 8, 8)
    whole, largest = kept_bytes(net, x)
    assert whole <= x.nbytes
    assert largest <= x.nbytes


def test_as_many_images_fit_as_a_count_by_hand_allows() -> None:
    x = torch.rand(2, 3, 64, 64)
    one = x[:1].nbytes  # 7 results, 4 tensors at a time, and the image itself
    for images in (1, 5, 16, 100):
        memory = PROGRAM + images * 12 * one
        assert images_within(memory, Exponentials(7), x, True) == 1 << (images.bit_length() - 1)
    assert images_within(PROGRAM + 80 * one, Exponentials(7), x, False) == 16  # 4 + 1 each
    assert images_within(0, Exponentials(7), x, True) == 1


def test_an_attack_takes_no_more_images_at_a_time_than_fit() -> None:
    taken: list[int] = []

    class Large(Exponentials):
        def forward(self, x: Tensor) -> Tensor:
            taken.append(len(x))
            return super().forward(x)

    from trimtab.attacks import PGD, Linf

    x = torch.rand(24, 3, 256, 256)  # 3 tensors more than layers
    layers = MEMORY // (4 * x[:1].nbytes)
    net = Large(int(layers))
    with guard(net):
        assert prepare(net, x, torch.zeros(24, dtype=torch.long))[3] in (1, 2, 4)
    taken.clear()
    PGD(Linf("8/255"), steps=1)(Large(int(layers)), x[:10], torch.zeros(10, dtype=torch.long))
    assert max(taken) <= 4
