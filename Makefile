# `make demo` and `make test` work on a fresh checkout: the first call makes .venv.
# PYTHON=python3.12 picks the interpreter, VENV=dir the place, PYTEST_ARGS="-k name" adds
# arguments to pytest.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: help
help:
	@cat <<-'end'
	make demo        run examples/quickstart.py
	make test        the CPU tests, the documentation's examples included
	make slow        the repeats and soaks
	make mutants     take out each stream rule in turn, and see its tests fail
	make faults      put in faults that users met elsewhere, and see tests fail
	make gpu         the tests and benchmarks of a machine with GPUs
	make lint        ruff, mypy and import-linter
	make format      let ruff rewrite the code
	make bench       the quick benchmarks
	make changelog   show what the next release notes would say
	make venv        only set up $(VENV)
	make clean       remove $(VENV), caches and build products
	end

.PHONY: venv
venv: $(INSTALLED)

# A venv whose set-up was broken off, or that lost its interpreter, is made anew; a whole
# one is brought up to date. A torch that python3 has already, and that sees a GPU, is
# used as it is: python3 may itself live in a venv, which --system-site-packages does not
# look into, so a .pth file names the folder.
$(INSTALLED): setup.cfg pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "rpcfut needs Python 3.11 or newer, and $(PYTHON) is %s. Name another one: make PYTHON=python3.12 ..." % sys.version.split()[0])'
	export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
	sees_gpu='import torch; assert torch.version.cuda and torch.cuda.is_available()'
	rm -f $(INSTALLED)
	if [ -e $(VENV)/.unfinished ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then
	    echo "Setting up $(VENV); the first time takes a minute or more."
	    if "$(PYTHON)" -c "$$sees_gpu" 2>/dev/null; then
	        "$(PYTHON)" -m venv --clear --system-site-packages $(VENV)
	        if ! $(BIN)/python -c 'import torch' 2>/dev/null; then
	            site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	            "$(PYTHON)" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' >"$$site/outer.pth"
	        fi
	    else
	        "$(PYTHON)" -m venv --clear $(VENV)
	    fi
	fi
	touch $(VENV)/.unfinished
	if $(BIN)/python -c "$$sees_gpu" 2>/dev/null; then
	    torch=$$($(BIN)/python -c 'from importlib.metadata import version; print(version("torch").split("+")[0])')
	    echo "Using the installed torch $$torch."
	    sed "s/^torch==.*/torch==$$torch/" constraints.txt >$(VENV)/constraints.txt
	else
	    cp constraints.txt $(VENV)/constraints.txt
	fi
	$(BIN)/python -m pip install -q -c $(VENV)/constraints.txt setuptools
	$(BIN)/python -m pip install -q -c $(VENV)/constraints.txt --no-build-isolation -e '.[test,examples,bench]'
	rm $(VENV)/.unfinished
	touch $(INSTALLED)

.PHONY: demo
demo: $(INSTALLED)
	$(BIN)/python examples/quickstart.py

.PHONY: test
test: $(INSTALLED)
	$(BIN)/python -m pytest tests docs -m "not slow and not gpu" $(PYTEST_ARGS)

.PHONY: slow
slow: $(INSTALLED)
	$(BIN)/python -m pytest tests docs -m "slow and not gpu" --timeout=600 $(PYTEST_ARGS)

.PHONY: mutants
mutants: $(INSTALLED)
	$(BIN)/python -m tests.rules.mutants

.PHONY: faults
faults: $(INSTALLED)
	$(BIN)/python -m tests.faults

.PHONY: gpu
gpu: $(INSTALLED)
	PATH="$(abspath $(BIN)):$$PATH" .ci/gpu

.PHONY: lint
lint:
	.ci/run lint types layers

.PHONY: format
format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(INSTALLED)
	$(BIN)/python -m benchmarks --quick

.PHONY: changelog
changelog: $(INSTALLED)
	$(BIN)/python -m pip install -q -c $(VENV)/constraints.txt -e '.[docs]' --no-build-isolation
	$(BIN)/towncrier build --draft --config docs/towncrier.toml --version next

.PHONY: clean
clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
