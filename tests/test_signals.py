"""The base for windows of signals: known statistics and spectra, integers on the way, no other record's influence."""

import hashlib

import numpy as np
import pytest
import torch

import clpu
from clpu.bases.integers import quantised
from clpu.bases.signals import Signals, SignalSettings
from clpu.errors import BadNetwork


def windows(count=4, channels=6, size=128):
    """Samples from -4 to 4, drawn from a hash function: the same with every version of NumPy."""
    drawn = hashlib.shake_256(b"windows").digest(2 * count * channels * size)
    return torch.from_numpy(np.frombuffer(drawn, "<i2").reshape(count, channels, size) / 4 / 2048).float()


def by_hand(x, frequencies):
    """The same by NumPy's own functions, in floats."""
    x = x.double().numpy()
    lengths = np.rint(np.sqrt((x * 2048) ** 2).reshape(len(x), -1, 3, x.shape[2]).__pow__(2).sum(2) ** 0.5) / 2048
    x = np.concatenate([x, lengths], 1)
    spectrum = np.abs(np.fft.rfft(x))[:, :, 1 : frequencies + 1] / (x.shape[2] / 2)
    parts = [x.mean(2), x.std(2), x.min(2), x.max(2), np.abs(np.diff(x)).mean(2)]
    return np.concatenate([np.stack(parts, 2), spectrum], 2).reshape(len(x), -1)


def test_features_are_statistics_and_amplitudes():
    found = Signals(SignalSettings()).features(windows())
    assert found.shape == (4, 8 * 37)
    assert np.abs(found.numpy() - by_hand(windows(), 32)).max() < 3e-3  # cosines have ten bits


def test_a_sine_has_its_amplitude_at_its_frequency():
    t = torch.arange(128) / 128
    wave = (3 * torch.sin(2 * torch.pi * 5 * t) + 1)[None, None]
    found = Signals(SignalSettings(lengths=False)).features(wave)[0]
    assert found[0] == pytest.approx(1, abs=1e-3)
    assert found[1] == pytest.approx(3 / 2**0.5, abs=1e-3)
    assert found[5 + 4] == pytest.approx(3, abs=1e-2)
    assert (found[5:].argmax(), found[5:].sort()[0][-2] < 0.01) == (4, True)


def test_a_windows_features_depend_on_that_window_alone():
    base, x = Signals(SignalSettings()), windows(5)
    assert torch.equal(base.features(x), torch.cat([base.features(one) for one in x.split(1)]))
    assert torch.equal(base.features(x[[3, 1]]), base.features(x)[[3, 1]])


def test_integers_are_the_same_on_every_machine():
    rows = quantised(Signals(SignalSettings()).features(windows()), Signals.scale, Signals.root)
    assert hashlib.sha256(rows.numpy().tobytes()).hexdigest() == PINNED


PINNED = "da60d75c7d30743bd0f3c66ecf480b9f2c1afe6b8b506aed08519c2a02fe77ab"


def test_short_windows_and_single_channels_have_fewer_features():
    assert Signals(SignalSettings()).features(windows(2, 1, 10)).shape == (2, 5 + 5)
    assert Signals(SignalSettings(frequencies=3)).features(windows(2, 3, 10)).shape == (2, 4 * 8)


@pytest.mark.parametrize(
    "x", [torch.zeros(2, 6), torch.zeros(2, 6, 1), torch.zeros(2, 1, 2000), torch.zeros(1, 1, 9).byte()]
)
def test_what_is_not_a_window_is_refused(x):
    with pytest.raises(BadNetwork, match="windows"):
        Signals(SignalSettings()).features(x)


def test_an_agent_forgets_a_person_from_windows():
    x, y = windows(40), np.arange(40) % 2
    people = [f"p{i % 5}" for i in range(40)]
    agent = clpu.Agent("ridge", "base:signals")
    agent.learn("walk", x, y, people=people)
    agent.forget(person="p3")
    rest = [i for i in range(40) if i % 5 != 3]
    never = clpu.Agent("ridge", "base:signals")
    never.learn("walk", x[rest], y[rest], people=[people[i] for i in rest])
    assert agent.digest() == never.digest()
    assert torch.equal(agent.predict("walk", x), never.predict("walk", x))
