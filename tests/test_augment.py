"""Augmentation of many replicas at once, against an obvious loop over single images."""

import pytest
import torch
from torch import Tensor

from clpu import Agent
from clpu.learning.augment import crop_and_flip, draw, normalise
from clpu.methods import base


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def one_by_one(x: Tensor, drawn: Tensor, padding: int) -> Tensor:
    """The obvious way: pad each image, cut it out, flip it."""
    out = torch.empty_like(x)
    channels, height, width = x.shape[2:]
    for k, replica in enumerate(x):
        for b, image in enumerate(replica):
            row, column, flip = drawn[k, :, b].tolist()
            wide = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=x.dtype)
            wide[:, padding : padding + height, padding : padding + width] = image
            cut = wide[:, row : row + height, column : column + width]
            out[k, b] = cut.flip(-1) if flip else cut
    return out


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("shape", [(3, 16, 3, 32, 32), (1, 5, 1, 6, 9), (2, 1, 2, 3, 3)])
def test_the_batched_way_equals_the_loop_over_images(shape: tuple[int, ...], padding: int, dtype: torch.dtype) -> None:
    x = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(9)).to(dtype)
    seeds = range(shape[0])
    drawn = draw(generators(*seeds), shape[1], padding)
    result = crop_and_flip(x, generators(*seeds), padding)
    assert result.dtype == dtype
    assert torch.equal(result, one_by_one(x, drawn, padding))


def test_a_replicas_images_depend_on_its_own_generator_only() -> None:
    x = torch.rand(3, 8, 3, 12, 12)
    together = crop_and_flip(x, generators(1, 2, 3))
    for k, seed in enumerate((1, 2, 3)):
        assert torch.equal(together[k : k + 1], crop_and_flip(x[k : k + 1], generators(seed)))
    assert torch.equal(together[2], crop_and_flip(x, generators(7, 8, 3))[2])


def test_a_generator_goes_on_where_it_stopped_and_the_global_one_is_not_used() -> None:
    x = torch.rand(1, 16, 1, 12, 12)
    state = torch.get_rng_state()
    ours = generators(4)
    first, second = crop_and_flip(x, ours), crop_and_flip(x, ours)
    assert not torch.equal(first, second)
    assert torch.equal(state, torch.get_rng_state())


def test_every_shift_and_both_flips_are_drawn_equally_often() -> None:
    drawn = draw(generators(0), 90_000, 4)[0]
    for shifts in drawn[:2]:
        assert (shifts.bincount(minlength=9) / 90_000 - 1 / 9).abs().max() < 0.005
    assert (drawn[2].float().mean() - 0.5).abs() < 0.01


def test_images_on_another_device_keep_to_it() -> None:
    # The meta device computes shapes only, but refuses a mixture of devices as a GPU would.
    x = torch.empty(2, 3, 3, 8, 8, device="meta")
    assert crop_and_flip(x, generators(0, 1)).device.type == "meta"
    assert normalise(x, (0.5,) * 3, (0.2,) * 3).device.type == "meta"


def test_a_wrong_number_of_generators_is_refused() -> None:
    with pytest.raises(ValueError, match="2 replicas need as many generators, 1 were given"):
        crop_and_flip(torch.zeros(2, 1, 1, 4, 4), generators(0))


@pytest.mark.parametrize("leading", [(), (4,), (2, 4)])
def test_normalisation_equals_the_formula_channel_by_channel(leading: tuple[int, ...]) -> None:
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2615)
    x = torch.randint(0, 256, (*leading, 3, 5, 7), dtype=torch.uint8)
    result = normalise(x, mean, std)
    assert result.dtype == torch.float32
    for channel in range(3):
        expected = (x[..., channel, :, :].double() / 255 - mean[channel]) / std[channel]
        torch.testing.assert_close(result[..., channel, :, :].double(), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(normalise(x / 255, mean, std), result)


def test_the_warm_up_of_a_head_augments_its_images_too(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randint(0, 256, (32, 1, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    agent = Agent("lwf", "mlp", hidden=(6,), epochs=1, batch_size=16, augment="crop-flip")
    agent.learn("1", x, torch.arange(32) % 2)
    seen = []
    monkeypatch.setattr(base, "crop_and_flip", lambda x, sources: (seen.append(len(x[0])), x)[1])
    agent.learn("2", x, torch.arange(32) % 2)
    assert seen == [16] * 4  # two batches for the head alone, two for all
