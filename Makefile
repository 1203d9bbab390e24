# Two commands for people: `make demo` and `make test`. Both build what they need, and are quick the second time.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The oldest Python that pyproject.toml allows; the minimum versions of the dependencies are for it.
MINIMUM_PYTHON ?= python3.10
# One thread a process: the tests run in one process a core.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help demo test lint types unit test-slow test-cpus test-data test-ray fuzz bench-speed figures clean
.PHONY: test-pythons test-minimum test-wheel dist

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.demo ## run the demo, then benchmark every method (about a minute)
	@$(BIN)/clpu demo
	@echo
	@$(BIN)/clpu bench

test: lint types unit ## linters, types and the whole quick test suite

lint: $(VENV)/.dev ## ruff: style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.dev ## mypy
	@$(BIN)/mypy

unit: $(VENV)/.dev ## pytest
	@$(ONE_THREAD) $(BIN)/pytest -q -n auto

test-slow: $(VENV)/.dev ## the long tests
	@$(ONE_THREAD) $(BIN)/pytest -q -n auto -m slow

fuzz: $(VENV)/.dev ## damaged inputs for every parser of the store, without end
	@$(ONE_THREAD) $(BIN)/python tests/store/fuzzing.py

test-cpus: $(VENV)/.dev ## the quick tests once per instruction set that this CPU can pretend to have
	@$(ONE_THREAD) $(BIN)/python tests/cpus.py

test-data: $(VENV)/.dev ## known facts about the real data sets, for those who have them
	@$(ONE_THREAD) $(BIN)/pytest -q -m data

test-ray: $(VENV)/.dev ## the benchmark on a local Ray cluster, one of its workers killed in the middle
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	@$(ONE_THREAD) $(BIN)/pytest -q -m ray

bench-speed: $(VENV)/.dev ## the measurements of docs/performance.md; a few minutes on a quiet machine
	@for program in benchmarks/*.py; do echo "== $$program"; $(ONE_THREAD) $(BIN)/python $$program || exit 1; done

test-pythons: ## the quick suite on each Python from 3.10 to 3.13 that is installed, each in its own environment
	@failed= ran=; for version in 3.10 3.11 3.12 3.13; do \
		export PYENV_VERSION=$$version; \
		if ! python$$version -c '' 2>/dev/null; then echo "== Python $$version is not installed"; continue; fi; \
		echo "== Python $$version"; ran="$$ran $$version"; \
		$(MAKE) --no-print-directory unit PYTHON=python$$version VENV=$(VENV)-$$version || failed="$$failed $$version"; \
	done; \
	echo "== ran on Python:$${ran:- none}; failed on:$${failed:- none}"; [ -n "$$ran" ] && [ -z "$$failed" ]

test-minimum: $(VENV)-minimum/.made ## the quick suite, and Ray's, with exactly the versions that pyproject.toml states as minima
	@$(ONE_THREAD) $(VENV)-minimum/bin/pytest -q -n auto
	@$(ONE_THREAD) $(VENV)-minimum/bin/pytest -q -m ray

test-wheel: dist ## install the wheel alone into a fresh environment and run the main commands in an empty folder
	@rm -rf $(VENV)-wheel
	@$(PYTHON) -m venv $(VENV)-wheel
	@$(VENV)-wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@$(VENV)-wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	@sh tools/try-wheel.sh $(VENV)-wheel/bin

dist: $(VENV)-dist/.made ## build sdist and wheel in dist/, and check them with twine
	@rm -rf dist
	@$(VENV)-dist/bin/python -m build --quiet
	@$(VENV)-dist/bin/twine check --strict dist/*

figures: $(VENV)/.demo ## redraw the figures in docs/ and the tables of REPRODUCTION.md from the runs in reproduction/
	@$(BIN)/python reproduction/figure.py
	@$(BIN)/python reproduction/live_study.py draw
	@$(BIN)/python reproduction/tables.py

$(VENV)/bin/python:
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# torch comes first and pinned, so that no other package's range pulls in a different build of it.
$(VENV)/.torch: constraints.txt | $(VENV)/bin/python
	@echo "installing torch (a minute or two, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt $(VENV)/.torch
	@echo "installing clpu"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[images]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.torch
	@echo "installing clpu and its development tools"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV)-minimum/.made: pyproject.toml tools/minima.py
	@echo "creating $(VENV)-minimum (with $(MINIMUM_PYTHON); several GB, once)"
	@rm -rf $(VENV)-minimum
	@PYENV_VERSION=$(MINIMUM_PYTHON:python%=%) $(MINIMUM_PYTHON) -m venv $(VENV)-minimum
	@$(VENV)-minimum/bin/python tools/minima.py dev ray > $(VENV)-minimum/minima.txt
	@$(VENV)-minimum/bin/python -m pip install --quiet --disable-pip-version-check -r $(VENV)-minimum/minima.txt
	@$(VENV)-minimum/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

$(VENV)-dist/.made: | $(VENV)-dist/bin/python
	@$(VENV)-dist/bin/python -m pip install --quiet --disable-pip-version-check build twine
	@touch $@

$(VENV)-dist/bin/python:
	@$(PYTHON) -m venv $(VENV)-dist

clean: ## remove the virtual environments, dist/ and caches
	rm -rf $(VENV) $(VENV)-* dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
