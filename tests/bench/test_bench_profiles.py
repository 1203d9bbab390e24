"""Profiles and the overrides of --set."""

from dataclasses import replace

import pytest

from clpu import BadNetwork, BadSetting
from clpu.bench.plan import plan
from clpu.data.catalog import BENCHMARKS, DATASETS, is_about_people
from clpu.runs.plan import known_settings, with_settings
from clpu.runs.profiles import profile, with_overrides

#: Benchmarks of networks that are trained, in the paper or like it.
PAPERS = [benchmark for benchmark in BENCHMARKS if not is_about_people(benchmark)]
KNOWN = {m: known_settings(m, "mlp") for m in ("er", "ewc")}


@pytest.mark.parametrize("stream", PAPERS)
@pytest.mark.parametrize("name", ["paper", "small", "smoke"])
def test_every_stream_has_every_profile(stream, name):
    chosen = profile(stream, name)
    assert chosen.network == ("resnet18" if "cifar" in stream else "mlp")
    assert chosen.for_method("er", KNOWN["er"])["epochs"] >= 1


@pytest.mark.parametrize("stream", PAPERS)
def test_a_smoke_run_has_some_images_of_each_class(stream):
    """Images are taken evenly spaced, in the order of the data set: with three per class some class had none."""
    kind, _, name = stream.partition("-")
    classes = DATASETS[name].classes // (5 if kind == "split" else 1)
    assert profile(stream, "smoke").train >= 8 * classes


def test_a_smoke_run_does_not_take_the_papers_strengths():
    for method in ("ewc", "lsf"):
        strength = profile("split-cifar100", "smoke").for_method(method, {"strength": 0})["strength"]
        assert strength == profile("split-cifar100", "small").for_method(method, {"strength": 0})["strength"] == 2


@pytest.mark.data
@pytest.mark.parametrize("stream", PAPERS)
def test_every_smoke_run_can_be_planned(stream):
    plan(stream, profile(stream, "smoke"), ["seq"], "1R 2T 2F", 1)


@pytest.mark.parametrize("stream", PAPERS)
@pytest.mark.parametrize("name", ["paper", "small", "smoke"])
def test_nothing_of_a_benchmark_is_auto(stream, name):
    """The paper's benchmarks are computed with the paper's values, whatever the rule for users' data is."""
    sized = profile(stream, name)
    defaults = known_settings("er", sized.network)
    settings = {**defaults, **sized.for_method("er", defaults)}
    assert "auto" not in {key: value for key, value in settings.items() if key != "mixed_precision"}.values()
    assert settings["scaling"] == "none"
    assert settings["batch_size"] == 32
    if name == "paper" and "digits" not in stream:
        assert (settings["epochs"], settings["lr"]) == (10, 0.01)


@pytest.mark.parametrize("stream", sorted({*BENCHMARKS} - {*PAPERS}))
@pytest.mark.parametrize("name", ["small", "smoke"])
def test_benchmarks_of_people_build_on_a_base(stream, name):
    sized = profile(stream, name)
    assert sized.network.startswith("base:")
    assert sized.tasks == 1
    with pytest.raises(BadSetting, match="small and smoke"):
        profile(stream, "paper")


def test_a_methods_own_values_are_not_replaced_by_the_papers():
    sized = profile("perm-mnist", "smoke")
    assert sized.for_method("mine", {"lr": 0.5, "batch_size": "auto"}) == {"batch_size": 32}


def test_the_papers_settings_for_cifar():
    ten, hundred = profile("split-cifar10", "paper"), profile("split-cifar100", "paper")
    assert ten.for_method("ewc", {"strength": 0}) == {"strength": 500.0}
    assert hundred.for_method("ewc", {"strength": 0}) == {"strength": 1000.0}
    assert ten.for_method("clpu-der++", {"beta": 0, "alpha": 0}) == {"beta": 0.5}
    assert hundred.for_method("clpu-der++", {"beta": 0, "alpha": 0}) == {}
    assert ten.settings["width"] == 64


def test_overrides_are_typed_and_reach_one_method_or_all():
    base = profile("perm-mnist", "paper")
    changed = with_overrides(
        base, ["lr=0.2", "er.memory=50", "hidden=(30,20)", "uniform_loss=true", "train=500"], KNOWN
    )
    paper = {"epochs": 10, "batch_size": 32, "weight_decay": 0.0005, "scaling": "none"}
    assert changed.for_method("er", KNOWN["er"]) == {
        **paper, "lr": 0.2, "memory": 50, "hidden": (30, 20), "uniform_loss": True,
    }  # fmt: skip
    assert changed.for_method("ewc", KNOWN["ewc"]) == {**paper, "lr": 0.2, "hidden": (30, 20)}
    assert changed.train == 500


def test_an_override_for_all_wins_over_the_profiles_own_for_one():
    cifar = profile("split-cifar10", "paper")
    known = {m: known_settings(m, "resnet18") for m in ("ewc", "lsf")}
    assert with_overrides(cifar, ["strength=7.0"], known).for_method("ewc", known["ewc"])["strength"] == 7.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lr", "key=value"),
        ("=3", "key=value"),
        ("lrr=3", "did you mean 'lr'"),
        ("er.strength=3", "no setting 'strength'"),
        ("gem.lr=3", "no method 'gem' in this run; its methods: er, ewc"),
        ("train=-5", "positive"),
        ("epochs=1\r", "key=value"),
        ("train=many", "positive"),
    ],
)
def test_unknown_or_bad_overrides_are_refused_with_what_is_known(text, says):
    with pytest.raises(BadSetting, match=says):
        with_overrides(profile("perm-mnist", "paper"), [text], KNOWN)


def test_what_was_changed_is_kept_and_the_network_can_be_changed():
    changed = with_settings(profile("rot-digits", "smoke"), ["network=resnet18", "width=2"], ["er"])
    assert (changed.network, changed.settings["width"]) == ("resnet18", 2)
    assert changed.overrides == ("network=resnet18", "width=2")
    with pytest.raises(BadNetwork, match="mlp, resnet18"):
        with_settings(profile("rot-digits", "smoke"), ["network=brain"], ["er"])


@pytest.mark.parametrize(("text", "says"), [("lr={[]:1}", "a number"), ("uniform_loss=yes", "a boolean")])
def test_values_of_another_type_are_refused(text, says):
    chosen = with_settings(profile("rot-digits", "smoke"), [text], ["er"])
    with pytest.raises(BadSetting, match=says):
        plan("rot-digits", chosen, ["er"])


def test_what_changes_nothing_is_not_told_as_a_change():
    base = profile("perm-mnist", "paper")
    same = ["epochs=10", "lr=0.01", "er.memory=200"]
    assert with_settings(base, same, ["er", "seq"]).overrides == ()
    mixed = with_settings(base, ["lr=0.2", "er.lr=0.01", "epochs=10"], ["er", "seq"])
    assert mixed.overrides == ("lr=0.2", "er.lr=0.01")
    assert mixed.for_method("er", {"lr": "auto"}) == {"lr": 0.01}


def test_one_layer_needs_no_comma():
    chosen = with_settings(profile("rot-digits", "smoke"), ["hidden=30"], ["seq"])
    assert plan("rot-digits", chosen, ["seq"]).recipe.settings["seq"]["hidden"] == (30,)


def test_an_unknown_profile_is_refused():
    with pytest.raises(BadSetting, match="paper, medium, small, smoke"):
        profile("perm-mnist", "huge")


@pytest.mark.parametrize("stream", ["split-cifar10", "split-cifar100"])
def test_medium_is_the_papers_profile_with_a_narrower_network_and_three_seeds(stream):
    paper, medium = profile(stream, "paper"), profile(stream, "medium")
    changed = {"width": 20, "mixed_precision": "auto"}
    # The strengths that were chosen for this size (reproduction/strength_choices.py).
    chosen = {name: {"strength": 5.0} for name in ("ewc", "lsf") if stream == "split-cifar10"}
    expected = replace(paper, name="medium", settings={**paper.settings, **changed}, seeds=3)
    assert medium == replace(expected, of_method={**paper.of_method, **chosen})


def test_medium_exists_for_the_cifar_benchmarks_only():
    with pytest.raises(BadSetting, match="medium exists for cifar10 and cifar100; mnist has paper, small and smoke"):
        profile("perm-mnist", "medium")
