# Two commands do everything on a machine with Python 3.11+ and make: `make demo` and `make test`.

PYTHON ?= python3
VENV   := .venv
VLLM_VERSION := 0.33.0
TRITON_VERSION := 3.6.0
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test lint format screenshots man bench test-triton test-vllm clean

## Start the bundled engine and show it.
demo: $(VENV)/engine
	$(BIN)/seqtop demo

## Lint, then run every test. One torch thread per worker, as there are as many workers as cores.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile

lint: $(VENV)/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

## Draw screenshots/ from a seeded run.
screenshots: $(VENV)/dev
	$(BIN)/python screenshots/make.py

## Write docs/seqtop.1 from the command's help.
man: $(VENV)/dev
	$(BIN)/python docs/make_man.py

## Measure, compared with alternatives in the same run; writes docs/performance.md.
bench: $(VENV)/dev
	$(BIN)/python -m benchmarks --json docs/performance.json --markdown docs/performance.md

## Run the Triton kernels in Triton's interpreter, and compile them; needs no GPU.
test-triton: $(VENV)-triton/installed
	PYTHONPATH=$(VENV)-triton TRITON_INTERPRET=1 OMP_NUM_THREADS=1 \
		$(BIN)/pytest tests/engine_stub/platforms/test_triton_attention.py

## Test the adapter with a real vLLM, without a GPU. It downloads about 2 GB the first time, and vLLM is
## slow to start. Another version: make test-vllm VLLM_VERSION=0.32.0
test-vllm: $(VENV)-vllm/vllm/$(VLLM_VERSION)/installed
	export PYTHONPATH=$(CURDIR)/$(VENV)-vllm/vllm/$(VLLM_VERSION):$(CURDIR):$(CURDIR)/tests/vllm; \
	export VLLM_TARGET_DEVICE=cpu VLLM_LOGGING_LEVEL=WARNING HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1; \
	$(VENV)-vllm/bin/python -m pytest --confcutdir tests/vllm -s -q tests/vllm/against_vllm.py \
		tests/vllm/kv_events_against_vllm.py && \
	$(VENV)-vllm/bin/python tests/vllm/overhead.py

clean:
	rm -rf $(VENV) $(VENV)-triton $(VENV)-vllm build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras, so that only changed requirements are installed again.
$(VENV)/engine: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[engine]'
	touch $@

$(VENV)/dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/engine

# Beside the other packages, of which numpy is replaced: Triton's interpreter needs an older one.
$(VENV)-triton/installed: | $(VENV)/dev
	$(BIN)/python -m pip install --quiet --upgrade --target $(VENV)-triton triton==$(TRITON_VERSION) numpy==2.3.5
	touch $@

$(VENV)-vllm/vllm/$(VLLM_VERSION)/installed: tests/vllm/install.sh tests/vllm/requirements.txt
	PYTHON=$(PYTHON) tests/vllm/install.sh $(VENV)-vllm $(VLLM_VERSION)
	touch $@
