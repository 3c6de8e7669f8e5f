# Every task of the project, one target each. `make` lists them.
#
#   PYTHON=python3.12       the Python to build .venv on (3.11 to 3.14)
#   TORCH_INDEX=URL         take torch from this index, for example a CPU-only build, and leave CUDA's packages out
#   ARGS="-k batching -x"   more arguments for the command that a target runs

.DEFAULT_GOAL := help
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory

export PYTHON TORCH_INDEX UPGRADE
# Compiled modules are kept whatever the shell says: servers and model processes start several times faster with them.
unexport PYTHONDONTWRITEBYTECODE
ifeq ($(SSL_CERT_FILE),)
ifneq ($(PIP_CERT),)
export SSL_CERT_FILE := $(PIP_CERT)
endif
endif

BIN := .venv/bin
# One thread for each library: a test's threads are the ones that it starts, and results do not hang on a machine's size.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

##@ Use

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: quickstart
quickstart: runtime ## Serve the quick start's models on this machine and talk to them
	@$(BIN)/shoal quickstart $(ARGS)

.PHONY: bench
bench: dev ## Run the benchmarks
	$(BIN)/python -m bench.run $(ARGS)

##@ Check

.PHONY: test
test: dev ## Run the tests, without the long ones
	$(ONE_THREAD) $(BIN)/pytest tests $(ARGS)

.PHONY: soak
soak: dev ## Run the tests in their long form
	SHOAL_SOAK=1 $(ONE_THREAD) $(BIN)/pytest tests -m "not conformance" --timeout 3600 $(ARGS)

.PHONY: conformance
conformance: dev ## Run other projects' clients and suites against this one
	$(ONE_THREAD) bash tests/conformance/run.sh $(ARGS)

.PHONY: lint
lint: lint-ruff lint-mypy lint-imports proto-check ## Run every static check (with -k: all of them, even after one fails)

.PHONY: lint-ruff
lint-ruff: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: lint-mypy
lint-mypy: dev
	$(BIN)/mypy

.PHONY: lint-imports
lint-imports: dev
	$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter

.PHONY: proto-check
proto-check: dev ## Check that what is generated from the .proto files is up to date
	$(BIN)/python tools/gen_proto.py --check

##@ Change

.PHONY: format
format: dev ## Format the code, and mend what ruff can
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

.PHONY: proto
proto: dev ## Generate the protocol code anew
	$(BIN)/python tools/gen_proto.py

.PHONY: lock
lock: ## Write requirements/ anew from pyproject.toml (UPGRADE=1: the newest of everything)
	@bash tools/lock.sh

##@ Set up

.PHONY: runtime
runtime: ## Make .venv with what runs Shoal
	@bash tools/bootstrap.sh runtime

.PHONY: dev
dev: ## Make .venv with that, the tests and the tools
	@bash tools/bootstrap.sh dev

.PHONY: clean
clean: ## Remove .venv and all else that is made (uv's own cache of downloads stays)
	rm -rf .venv .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find api bench cli dataplane operator tests tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
