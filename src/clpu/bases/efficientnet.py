"""EfficientNet-lite0: photographs in, 1,280 features out.

Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (2019), in the variant for small
devices: ReLU6 in place of swish, no squeeze-and-excitation. Every convolution is followed by a BatchNorm whose
statistics never change, so it is folded into the convolution's weights when the published file is converted.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES = 1280
#: Kernel size, stride of the first block, expansion, output channels and number of blocks, stage by stage.
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
_EPSILON = 1e-3  # of the published BatchNorm layers


class SameConv(nn.Conv2d):
    """A convolution whose output has ⌈size / stride⌉ rows; an odd row of padding goes to the end, as in TensorFlow."""

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        pads: list[int] = []
        for size in (x.shape[3], x.shape[2]):
            missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [missing // 2, missing - missing // 2]
        return F.conv2d(F.pad(x, pads), self.weight, self.bias, self.stride, 0, 1, self.groups)


class Block(nn.Module):
    """Widen by a 1 × 1 convolution, filter each channel, narrow again; the input is added where shapes agree."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = before * expansion
        self.expand = nn.Conv2d(before, wide, 1) if expansion > 1 else None
        self.filter = SameConv(wide, wide, kernel, stride, groups=wide)
        self.project = nn.Conv2d(wide, after, 1)
        self.residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else F.relu6(self.expand(x))
        narrow: Tensor = self.project(F.relu6(self.filter(wide)))
        return x + narrow if self.residual else narrow


class EfficientNetLite0(nn.Module):
    """Photographs (n, 3, height, width) with values from 0 to 1, resized to `size` pixels → features (n, 1280), ≥ 0."""

    def __init__(self, size: int = 128) -> None:
        super().__init__()
        self.size = size
        self.stem = SameConv(3, 32, 3, 2)
        blocks, before = [], 32
        for kernel, stride, expansion, after, count in STAGES:
            for number in range(count):
                blocks.append(Block(before, after, kernel, stride if number == 0 else 1, expansion))
                before = after
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Conv2d(before, FEATURES, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", align_corners=False)
        x = ((x - 127 / 255) / (128 / 255)).contiguous(memory_format=torch.channels_last)
        x = F.relu6(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return F.relu6(self.head(x)).mean((2, 3))


def convert(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of `EfficientNetLite0` from those of the published file: W·γ/√(σ² + ε) and β − μ·γ/√(σ² + ε)."""
    folded: dict[str, Tensor] = {}

    def fold(ours: str, convolution: str, norm: str) -> None:
        weight, mean = published[f"{convolution}.weight"].double(), published[f"{norm}.running_mean"].double()
        scale = published[f"{norm}.weight"].double() / (published[f"{norm}.running_var"].double() + _EPSILON).sqrt()
        folded[f"{ours}.weight"] = (weight * scale.view(-1, 1, 1, 1)).float()
        folded[f"{ours}.bias"] = (published[f"{norm}.bias"].double() - mean * scale).float()

    fold("stem", "_conv_stem", "_bn0")
    for number in range(sum(count for *_, count in STAGES)):
        theirs, ours = f"_blocks.{number}", f"blocks.{number}"
        if f"{theirs}._expand_conv.weight" in published:
            fold(f"{ours}.expand", f"{theirs}._expand_conv", f"{theirs}._bn0")
        fold(f"{ours}.filter", f"{theirs}._depthwise_conv", f"{theirs}._bn1")
        fold(f"{ours}.project", f"{theirs}._project_conv", f"{theirs}._bn2")
    fold("head", "_conv_head", "_bn1")
    return folded
