# Every target sets up .venv by itself, from the lock file, and does nothing twice.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:

DATA_DIR ?= driftq-data
JOBS     ?= 2
BENCH    ?= engine http v1 cli client jobs spark
ARGS     ?=

BIN   := .venv/bin
READY := .venv/.ready

# The first interpreter that is new enough and can make environments. Run it to know: a name on PATH may be a shim.
PYTHON ?= $(shell for name in python3.13 python3.12 python3.11 python3; do \
	$$name -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$name && break; done)
UV     := $(shell command -v uv 2>/dev/null)

.PHONY: help run test quick check fmt bench peers docs lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' Makefile

run: $(READY) ## play a day of agents, run Spark over it, show it all, and go on serving (DATA_DIR=, ARGS=); with ONCE=1 exit
	@exec $(BIN)/driftq demo $(if $(ONCE),,--serve) --data-dir "$(DATA_DIR)" $(ARGS)

test: check ## everything: format, lint, types, layers, all tests (JOBS=, CRASH=all, SERVER_KILLS=500, ARGS=)
	@$(BIN)/pytest -q -n $(JOBS) --dist worksteal --durations=12 --hypothesis-profile=ci --ignore=tests/pipeline $(ARGS)
	@$(BIN)/python -c 'import driftq.pipeline; driftq.pipeline.warm()'
	@$(BIN)/pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=12 tests/pipeline $(ARGS) || { code=$$?; [ $$code = 5 ] && [ -n "$(ARGS)" ] || exit $$code; }

quick: check ## format, lint, types, layers, unit and tidy tests: a few minutes on two cores
	@$(BIN)/pytest -q -n $(JOBS) $(wildcard tests/unit) tests/tidy $(ARGS)

check: $(READY) ## format, lint, types, layers
	@$(BIN)/ruff format --check --quiet || { echo "not formatted: make fmt"; exit 1; }
	@$(BIN)/ruff check --quiet
	@$(BIN)/mypy src tests $(wildcard bench)
	@$(BIN)/lint-imports --no-logo

fmt: $(READY) ## format the code, and mend what the linter can mend
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

bench: $(READY) ## measure the engine and the server, one JSON line per workload (BENCH=engine, http, v1, cli, spark, client, jobs or queue, ARGS=)
	@for suite in $(BENCH); do $(BIN)/python -m bench.$$suite $(ARGS) || failed=1; done; [ -z "$${failed:-}" ]

peers: ## install what benchmarks compare with (Redis, wrk, NATS, BullMQ, redis-py, nats-py), into .peers
	@PYTHON="$(PYTHON)" tools/peers

docs: $(READY) ## write docs/api.md again, from what the server says of itself
	@$(BIN)/python tools/api.py

lock: ## pin the dependencies again after a change in pyproject.toml (UPGRADE=1: the newest of each)
	@PYTHON="$(PYTHON)" tools/lock

clean: ## remove what the other targets made, but no data
	@rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .peers build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Hashes are required for what comes from outside; the project itself is built with what the lock brought.
$(READY): pyproject.toml requirements-dev.lock
ifneq ($(UV),)
	@echo "setting up .venv with uv"
	@$(UV) venv --quiet --allow-existing --python "$(or $(PYTHON),>=3.11)" .venv
	@VIRTUAL_ENV=.venv $(UV) pip sync --quiet --require-hashes requirements-dev.lock
	@VIRTUAL_ENV=.venv $(UV) pip install --quiet --no-deps --no-build-isolation --editable .
else
	@[ -n "$(PYTHON)" ] || { echo "DriftQ needs Python 3.11 or newer with its venv module; none was found on PATH" >&2; exit 1; }
	@echo "setting up .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
endif
	@touch $@
