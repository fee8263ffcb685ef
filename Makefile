# Everything a person or CI runs. `make up` and `make test` build what they need, from nothing.
#
# requirements/*.txt pin every package. They name no index, so pip takes its own default; there
# torch 2.13.0 is a CPU build or, on Linux from the public index, the CUDA build with its
# libraries (larger, and it runs on a CPU just as well).

VENV    ?= .venv
PYTHON  ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
             "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
WORKERS ?= 3
ARGS    ?=
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help up test check format bench experiments screenshots lock clean

help:
	@echo 'make up      start a gateway and $(WORKERS) workers (WORKERS=n, ARGS="--port 9000 --model PATH")'
	@echo 'make test    ruff, mypy and every test (TESTS="tests/kvcache" for some)'
	@echo 'make check   ruff and mypy alone;  make format  rewrites the files'
	@echo 'make bench   time to first token, cold and warm, in a conversation'
	@echo 'make experiments  published results and policies, simulated; rewrites docs/results.md (NAMES="winners")'
	@echo 'make screenshots  pictures of the pages for README and docs, by chromium'
	@echo 'make lock    pin the newest versions that pyproject.toml allows'

up: $(VENV)/.runtime
	$(BIN)/expediter up --workers $(WORKERS) $(ARGS)

TESTS ?=
test: check
	$(BIN)/expediter fetch
	$(BIN)/python -m pytest $(TESTS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/conversation.py

# Those that replay a recorded trace look for it under EXPEDITER_TRACES and leave it out without.
NAMES ?=
experiments: $(VENV)/.dev
	$(BIN)/python -m experiments $(NAMES)

screenshots: $(VENV)/.dev
	$(BIN)/python tests/browser/screenshots.py

# The environment is built anew only when a pin or pyproject.toml changes.
$(VENV)/.runtime: requirements/runtime.txt pyproject.toml | $(BIN)/python
	@echo 'Installing the pinned packages into $(VENV); the first time this takes a few minutes'
	$(PIP) install --progress-bar on -r requirements/runtime.txt
	$(PIP) install --no-deps -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	@echo 'Installing the pinned development packages'
	$(PIP) install --progress-bar on -r requirements/dev.txt
	@touch $@

$(BIN)/python:
	@test -n '$(PYTHON)' || { echo 'Expediter needs Python 3.11 or newer. Install it, or name one: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@echo 'Creating $(VENV) with $(PYTHON)'
	'$(PYTHON)' -m venv $(VENV)

COMPILE := $(BIN)/pip-compile --quiet --upgrade --strip-extras --allow-unsafe --no-annotate \
           --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

# `+cpu` is dropped: a local version exists on one index only.
lock: $(VENV)/.dev
	$(PIP) install --quiet pip-tools==7.6.2
	$(COMPILE) --extra engine -o requirements/runtime.txt pyproject.toml
	sed -i 's/+cpu$$//' requirements/runtime.txt
	$(COMPILE) --extra engine --extra dev -c requirements/runtime.txt -o requirements/dev.txt pyproject.toml
	sed -i 's/+cpu$$//' requirements/dev.txt

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
