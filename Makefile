# Two commands for people: `make demo` and `make test`. Both build what they need, and are quick the second time.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# One thread a process: the tests run in one process a core.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help demo test lint types unit test-slow test-data test-ray bench-speed figures clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.demo ## an agent learns, remembers and forgets; then nine methods compared; less than a minute
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

test-data: $(VENV)/.dev ## known facts about the real data sets, for those who have them
	@$(ONE_THREAD) $(BIN)/pytest -q -m data

test-ray: $(VENV)/.dev ## the benchmark on a local Ray cluster, one of its workers killed in the middle
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	@$(ONE_THREAD) $(BIN)/pytest -q -m ray

bench-speed: $(VENV)/.dev ## the measurements of docs/performance.md; a few minutes on a quiet machine
	@for program in benchmarks/*.py; do echo "== $$program"; $(ONE_THREAD) $(BIN)/python $$program || exit 1; done

figures: $(VENV)/.demo ## redraw docs/demo.svg and the tables of REPRODUCTION.md from the runs in reproduction/
	@$(BIN)/python reproduction/figure.py
	@$(BIN)/python reproduction/tables.py

$(VENV)/bin/python:
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# torch comes first and pinned, so that no other package's range pulls in another build of it.
$(VENV)/.torch: constraints.txt | $(VENV)/bin/python
	@echo "installing torch (a minute or two, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt $(VENV)/.torch
	@echo "installing clpu"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[data,store]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.torch
	@echo "installing clpu and its development tools"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.demo

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
