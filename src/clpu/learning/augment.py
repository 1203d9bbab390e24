"""Random crop, horizontal flip and normalisation of image batches, for many replicas at once.

Replica k draws from its own generator only: its images are the same whether it trains alone or with others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad


def crop_and_flip(x: Tensor, generators: Sequence[Generator], padding: int = 4) -> Tensor:
    """Shift each image by up to `padding` pixels, filling with zeros, and flip every second one on average.

    `x` is (replicas, batch, channels, height, width), uint8 or floating point, on any device; the generators
    are on the CPU, one a replica, and each gives three numbers an image: row, column, flip.

    >>> x = torch.ones(2, 3, 1, 8, 8, dtype=torch.uint8)
    >>> crop_and_flip(x, [torch.Generator().manual_seed(s) for s in (0, 1)]).shape
    torch.Size([2, 3, 1, 8, 8])
    """
    replicas, batch, channels, height, width = x.shape
    if len(generators) != replicas:
        raise ValueError(f"{replicas} replicas need as many generators, {len(generators)} were given")
    rows, columns, flips = draw(generators, batch, padding).to(x.device).unbind(1)
    # Row r of the result shows row r + shift of the padded image; a flip counts the columns backwards.
    rows = rows.reshape(-1, 1) + torch.arange(height, device=x.device)
    across = torch.arange(width, device=x.device).expand(replicas * batch, -1)
    across = torch.where(flips.reshape(-1, 1).bool(), width - 1 - across, across)
    columns = columns.reshape(-1, 1) + across
    wide = width + 2 * padding
    pixels = (rows[:, :, None] * wide + columns[:, None, :]).reshape(replicas * batch, 1, height * width)
    padded = pad(x, (padding,) * 4).reshape(replicas * batch, channels, -1)
    return padded.gather(2, pixels.expand(-1, channels, -1)).reshape(x.shape)


def draw(generators: Sequence[Generator], batch: int, padding: int) -> Tensor:
    """Draw the numbers of `crop_and_flip`: (replicas, 3, batch) of row shifts, column shifts and flips."""
    drawn = []
    for generator in generators:
        shifts = torch.randint(0, 2 * padding + 1, (2, batch), generator=generator)
        flips = torch.randint(0, 2, (1, batch), generator=generator)
        drawn.append(torch.cat((shifts, flips)))
    return torch.stack(drawn)


def normalise(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x - mean) / std per channel, in float32; uint8 pixels are scaled to [0, 1] first.

    >>> normalise(torch.full((1, 1, 1), 255, dtype=torch.uint8), mean=[0.5], std=[0.25])
    tensor([[[2.]]])
    """
    scaled = x.to(torch.float32) / 255 if x.dtype == torch.uint8 else x.to(torch.float32)
    centre = torch.tensor(mean, dtype=torch.float32, device=x.device).reshape(-1, 1, 1)
    spread = torch.tensor(std, dtype=torch.float32, device=x.device).reshape(-1, 1, 1)
    return (scaled - centre) / spread
