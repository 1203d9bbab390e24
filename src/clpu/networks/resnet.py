"""ResNet-18 for small images: 3×3 stem, no max-pool, as in the paper's CIFAR experiments."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut.

    The shortcut of a block with a stride leaves out rows and columns itself instead of leaving that to its 1×1
    convolution. That is the same function, but the weight gradient of a strided 1×1 convolution in channels-last
    layout writes beyond its buffer in oneDNN (its issue 6035; torch 2.13 has it): with AVX2 below 8 input channels,
    with AVX-512 below 16 if images are large. Rows and columns are dropped by pooling with a 1×1 window. It gives the
    same values as slicing, but the gradient stays in channels-last layout; the gradient of a slice does not, which
    slows down the layers before it.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)), inplace=True)
        if self.stride != 1:
            x = F.avg_pool2d(x, 1, self.stride)
        return F.relu(self.norm2(self.conv2(out)) + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    """Images (n, channels, height, width) or (n, height, width) → (n, 8·width) features."""

    #: The layout that convolutions on CPUs and GPUs like best.
    channels_last = True

    def __init__(self, channels: int, width: int = 64, mixed: bool = False) -> None:
        super().__init__()
        self.mixed = mixed
        self.stem = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks = []
        inputs = width
        for stage in range(4):
            outputs = width * 2**stage
            blocks += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3:
            x = x.unsqueeze(1)
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        # Without autocast's cache: it would keep the weights of the first step for as long as an outer context lasts.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.mixed, cache_enabled=False):
            out = self.blocks(F.relu(self.norm(self.stem(x)), inplace=True))
        return F.adaptive_avg_pool2d(out.float(), 1).flatten(1)
