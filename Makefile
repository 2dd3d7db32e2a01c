# make build   the default matrix (config/matrix.yaml), in an environment of its own
# make test    linters and tests
# make lint    linters alone
# make clean   what was built; the environment stays
# make demo-train   the demo checkpoint again, from synthesizers to word error rates
#
# PYTHON=... uses an environment that exists instead of making .venv.

ifdef PYTHON
BIN := $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("scripts"))')/
RUNTIME :=
TOOLS :=
else
BIN := .venv/bin/
PYTHON := $(BIN)python
RUNTIME := .venv/.runtime
TOOLS := .venv/.tools
endif

.PHONY: build test lint clean demo-train
.DELETE_ON_ERROR:

build: $(RUNTIME)
	$(PYTHON) -m snakemake
	$(PYTHON) -m voxtral_build list

# In the order of their names: by default, a file with one test of minutes would come last.
test: lint
	$(PYTHON) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(TOOLS)
	$(BIN)ruff check .
	$(BIN)ruff format --check .
	$(BIN)mypy
	$(BIN)lint-imports
	$(BIN)snakefmt --check Snakefile workflow
	$(PYTHON) workflow/lint.py

# An interrupted training goes on where it stopped. Needs Debian's packages espeak-ng, flite,
# festival and festvox-kdlpc16k.
demo-train: $(TOOLS)
	$(PYTHON) -m demo.train --output build/demo/checkpoint --work build/demo/training
	$(PYTHON) -m demo.recordings build/demo/recordings
	$(PYTHON) -m demo.evaluate --checkpoint build/demo/checkpoint build/demo/recordings/*

clean:
	rm -rf build artifacts logs .snakemake

# Stamps: a second run installs nothing.
.venv/.runtime: requirements.txt constraints.txt pyproject.toml
	test -x .venv/bin/python || $$(command -v python3.11 || echo python3) -m venv .venv
	.venv/bin/python -m pip install --disable-pip-version-check --progress-bar off -r requirements.txt
	.venv/bin/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

.venv/.tools: requirements-dev.txt .venv/.runtime
	.venv/bin/python -m pip install --disable-pip-version-check --progress-bar off -r requirements-dev.txt
	touch $@
