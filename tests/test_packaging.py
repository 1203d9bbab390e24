"""What pyproject.toml, constraints.txt and the pages about the project say agrees."""

import re
import runpy
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import clpu

ROOT = Path(__file__).parent.parent
TOOL = runpy.run_path(str(ROOT / "tools" / "minima.py"))
PROJECT = TOOL["tomllib"].loads((ROOT / "pyproject.toml").read_text())["project"]
MINIMA = [Requirement(line) for line in TOOL["minima"](PROJECT, ["dev", "ray"])]
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))


def pins(python):
    """What constraints.txt pins for a Python, by name: every version that applies."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            if pin.marker is None or pin.marker.evaluate({"python_version": python}):
                found.setdefault(pin.name.lower(), []).append(str(pin.specifier).removeprefix("=="))
    return found


def test_an_extra_that_names_an_extra_of_its_own_project_is_resolved():
    project = {
        "name": "own",
        "dependencies": ["torch>=2.4"],
        "optional-dependencies": {"images": ["pillow>=10"], "dev": ["own[images]", "ruff"]},
    }
    assert list(TOOL["minima"](project, ["dev"])) == ["torch==2.4", "pillow==10", "ruff"]


def test_every_dependency_but_the_linters_states_a_minimum():
    assert {minimum.name for minimum in MINIMA if not minimum.specifier} == {"mypy", "ruff"}
    assert all(re.fullmatch(r"(==[\d.]+)?", str(minimum.specifier)) for minimum in MINIMA)


@pytest.mark.parametrize("python", PYTHONS)
def test_set_up_installs_one_version_of_each_dependency_and_it_is_at_least_the_minimum(python):
    found = pins(python)
    assert all(len(versions) == 1 for versions in found.values())
    for minimum in MINIMA:
        [version] = found[minimum.name]
        assert Requirement(str(minimum).replace("==", ">=")).specifier.contains(version), minimum.name


def test_the_pythons_of_the_classifiers_are_those_that_the_make_target_runs():
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert f"for version in {' '.join(PYTHONS)};" in (ROOT / "Makefile").read_text()


def test_the_version_is_the_same_everywhere():
    assert clpu.__version__ == PROJECT["version"]
    assert f"\nversion: {clpu.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{clpu.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_contributors_are_told_about_every_make_target():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    assert "test-minimum" in targets
    assert [target for target in targets if f"`make {target}`" not in page] == []
