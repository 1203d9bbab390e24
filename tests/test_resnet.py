"""ResNet-18 in channels-last layout against float64, for every width and instruction set.

In a separate process, because the bug corrupts memory: oneDNN's weight gradient of a strided 1×1
convolution writes beyond its buffer (its issue 6035). With AVX2 that happens below 8 input channels, with AVX-512 below
16 if images are large.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from clpu.networks.resnet import Block

WIDTHS = range(1, 33)

PROGRAM = """
import copy, json, sys
import torch
import torch.nn.functional as F
from clpu.networks.resnet import Block, ResNet18

torch.set_num_threads(1)
F.relu = lambda x, inplace=False: F.silu(x)  # smooth: rounding could take a number to the other side of ReLU's kink


def error(module, shape):
    # The largest error of a gradient, as a share of the largest number in it.
    x, weight = torch.randn(shape), None
    gradients = []
    for dtype in (torch.float64, torch.float32):
        mine, inputs = copy.deepcopy(module).to(dtype), x.to(dtype)
        if dtype is torch.float32:
            mine = mine.to(memory_format=torch.channels_last)
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        inputs.requires_grad_()
        out = mine(inputs)
        weight = torch.randn(out.shape) if weight is None else weight
        (out * weight.to(dtype)).sum().backward()
        gradients.append([inputs.grad, *(p.grad for p in mine.parameters())])
    return max(float((b - a).abs().max() / a.abs().max()) for a, b in zip(*gradients))


errors = {}
for width in map(int, sys.argv[1:]):
    torch.manual_seed(width)
    # In evaluation mode: batch normalisation over a few numbers would amplify rounding.
    errors[f"network {width}"] = error(ResNet18(3, width).eval(), (3, 3, 16, 16))
    if width < 16:
        errors[f"block {width}, large images"] = error(Block(width, 2 * width, 2).eval(), (2, width, 96, 96))
print(json.dumps(errors))
"""


@pytest.mark.parametrize("isa", ["", "AVX2"], ids=["as it is", "at most AVX2"])
def test_gradients_in_channels_last_layout_are_those_in_float64_for_every_width(isa):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if isa:
        environment["ONEDNN_MAX_CPU_ISA"] = isa
    command = [sys.executable, "-c", PROGRAM, *map(str, WIDTHS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.returncode == 0, f"the process ended with {done.returncode}: {done.stderr[-500:]}"
    errors = json.loads(done.stdout)
    assert len(errors) > len(WIDTHS)
    assert {name: e for name, e in errors.items() if not e < 1e-4} == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(8, 8), (7, 5), (1, 1)])
def test_a_strided_shortcut_sees_every_second_row_and_column(dtype, size):
    seen = []
    block = Block(3, 6, 2).to(dtype).eval()
    block.shortcut[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    x = torch.randn(4, 3, *size).to(dtype).contiguous(memory_format=torch.channels_last)
    block(x)
    assert torch.equal(seen[0], x[:, :, ::2, ::2])


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_stay_in_channels_last_layout(stride):
    """Otherwise every layer before a block would convert them."""
    block = Block(20, 40, stride).to(memory_format=torch.channels_last)
    x = torch.randn(4, 20, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
    (gradient,) = torch.autograd.grad(block(x).square().sum(), x)
    assert gradient.is_contiguous(memory_format=torch.channels_last)
