# Two commands do everything on a machine with Python 3.11+ and make: `make demo` and `make test`.
# CONTRIBUTING.md says what the other ones are for.

PYTHON ?= python3
VENV   := .venv
VLLM_VERSION := 0.33.0
SGLANG_VERSION := 0.5.23
TRITON_VERSION := 3.6.0
TRANSFORMERS_VERSION := 5.20.2
CPU_TORCH := https://download.pytorch.org/whl/cpu
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --constraint constraints.txt

# One torch thread per worker. As many workers as a small machine has cores: with a third, which would
# use the time that some tests wait, all of it took as long and a fifth more processor time.
# Files start in the order of their names, by which the long ones come first. Modules are compiled once,
# also where the environment says otherwise: tests start some hundred processes.
WORKERS ?= 2
PYTEST  := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
PURE    := tests/checks tests/engine_stub/core tests/export tests/kv tests/publish tests/sequence \
	tests/state tests/test_documents.py tests/test_names.py tests/wire

.PHONY: demo check test test-all snapshots lint format screenshots docs man protocol bench test-lowest test-python \
	test-triton test-vllm test-vllm-versions bench-vllm test-sglang test-transformers stored-runs mutants clean

## Start the bundled engine and show it.
demo: $(VENV)/engine
	@echo 'Starting the bundled engine and the app; q quits.'
	$(BIN)/seqtop demo

## A minute: lint, and test the state, the wire, the checks, the exports, the engine's scheduler and
## what the documents list.
check: lint
	$(PYTEST) -m "not release" $(PURE)

## Six minutes: lint, and test all that a change can break.
test: lint
	$(PYTEST) -m "not release"

## Before a release: lint, and run every test, also with the lowest versions, Triton, a real vLLM and
## a real SGLang.
test-all: lint
	$(PYTEST)
	$(MAKE) test-lowest
	$(MAKE) test-triton
	$(MAKE) test-vllm
	$(MAKE) test-sglang
	$(MAKE) test-transformers

## Store what screens show as the snapshots that tests compare with. Look at `git diff` afterwards.
snapshots: $(VENV)/dev
	find tests -name __snapshots__ -prune -exec rm -r {} +
	$(PYTEST) -m snapshot --update-snapshots tests/kv tests/tui

lint: $(VENV)/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

## Draw screenshots/ from a seeded run, and record it for the demo without torch.
screenshots: $(VENV)/dev
	$(BIN)/python screenshots/make.py

## Build the site of the documents, in site/; every page and link is checked.
docs: $(VENV)-docs/installed
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict

## Write docs/seqtop.1 from the command's help.
man: $(VENV)/dev
	$(BIN)/python docs/make_man.py

## Write the field tables of docs/protocol.md, and the JSON Schema, from the messages.
protocol: $(VENV)/dev
	$(BIN)/python docs/make_protocol.py
	$(BIN)/python -m docs.make_json_schema

## Measure, compared with alternatives in the same run; writes docs/performance.md.
bench: $(VENV)/dev
	$(BIN)/python -m benchmarks --json docs/performance.json --markdown docs/performance.md

## Run the Triton kernels in Triton's interpreter, and compile them; needs no GPU.
test-triton: $(VENV)-triton/installed
	PYTHONPATH=$(VENV)-triton TRITON_INTERPRET=1 OMP_NUM_THREADS=1 \
		$(BIN)/pytest tests/engine_stub/platforms/test_triton_attention.py \
		tests/engine_stub/platforms/test_triton_layers.py

## Test the adapter with a real vLLM, without a GPU. It downloads about 2 GB the first time, and vLLM is
## slow to start. Another version: make test-vllm VLLM_VERSION=0.28.0
test-vllm: $(VENV)-vllm/vllm/$(VLLM_VERSION)/installed
	export PYTHONPATH=$(CURDIR)/$(VENV)-vllm/vllm/$(VLLM_VERSION):$(CURDIR):$(CURDIR)/tests/vllm; \
	export VLLM_TARGET_DEVICE=cpu VLLM_LOGGING_LEVEL=WARNING HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1; \
	$(VENV)-vllm/bin/python -m pytest --confcutdir tests/vllm -s -q tests/vllm/stepped_against_vllm.py \
		tests/vllm/bugs_against_vllm.py tests/vllm/random_against_vllm.py tests/vllm/against_vllm.py \
		tests/vllm/kv_events_against_vllm.py tests/vllm/prefix_misses_against_vllm.py \
		tests/vllm/renamed_against_vllm.py tests/vllm/publisher_against_vllm.py \
		tests/vllm/whatif_against_vllm.py tests/vllm/reports_against_vllm.py \
		tests/vllm/fake_against_vllm.py tests/vllm/ledger_against_vllm.py \
		tests/vllm/woken_against_vllm.py tests/vllm/served_against_vllm.py
	$(MAKE) bench-vllm

## Measure what the adapter costs a real vLLM, without a GPU: absent, dormant and attached, with a steady load
## and with requests that come and go.
bench-vllm: $(VENV)-vllm/vllm/$(VLLM_VERSION)/installed
	export PYTHONPATH=$(CURDIR)/$(VENV)-vllm/vllm/$(VLLM_VERSION):$(CURDIR):$(CURDIR)/tests/vllm; \
	export VLLM_TARGET_DEVICE=cpu VLLM_LOGGING_LEVEL=WARNING HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1; \
	$(VENV)-vllm/bin/python tests/vllm/overhead.py

## Start versions of vLLM from 0.11 on once each, with the adapter, and write the table in docs/vllm.md; it
## downloads half a gigabyte for each. Some only: make test-vllm-versions VERSIONS="0.32.0 0.31.0"
test-vllm-versions: $(VENV)-vllm/vllm/$(VLLM_VERSION)/installed
	$(VENV)-vllm/bin/python tests/vllm/versions.py --delete $(VERSIONS)

## Test the adapter with a real SGLang, without a GPU. It downloads about 1 GB the first time. Another
## version: make test-sglang SGLANG_VERSION=0.5.20
test-sglang: $(VENV)-sglang/sglang/$(SGLANG_VERSION)/installed
	export PYTHONPATH=$(CURDIR)/$(VENV)-sglang/sglang/$(SGLANG_VERSION):$(CURDIR):$(CURDIR)/tests/sglang; \
	export SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore; \
	$(VENV)-sglang/bin/python -m pytest --confcutdir tests/sglang -s -q \
		tests/sglang/stepped_against_sglang.py tests/sglang/disaggregated_against_sglang.py \
		tests/sglang/against_sglang.py && \
	$(VENV)-sglang/bin/python tests/sglang/overhead.py

## Test the adapter with a real transformers, without a GPU; it downloads 1.2 GB the first time.
## Another version: make test-transformers TRANSFORMERS_VERSION=5.24.0
test-transformers: $(VENV)-transformers/transformers/$(TRANSFORMERS_VERSION)/installed
	export PYTHONPATH=$(CURDIR)/$(VENV)-transformers/transformers/$(TRANSFORMERS_VERSION):$(CURDIR):$(CURDIR)/tests/transformers; \
	export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1; \
	$(VENV)-transformers/bin/python -m pytest --confcutdir tests/transformers -s -q \
		tests/transformers/stepped_against_transformers.py tests/transformers/served_against_transformers.py && \
	$(VENV)-transformers/bin/python tests/transformers/overhead.py

# The tests of the inspector that need neither torch nor the bundled engine.
INSPECTOR_TESTS = $(shell grep -rLE 'torch|engine_stub|ENGINE|"demo"' --include='test_*.py' \
	tests/history tests/kv tests/live tests/process tests/publish tests/sequence tests/state tests/text \
	tests/transport tests/tui tests/wire \
	tests/test_*.py)

## Change operators of a folder of seqtop/ one by one, and name the changes with which its tests pass:
## `make mutants ROOM=diff COUNT=100 SEED=0`.
COUNT ?= 100
SEED ?= 0
mutants: $(VENV)/dev
	$(BIN)/python -m tests.release mutants $(ROOM) --count $(COUNT) --seed $(SEED)

## Record tests/stored_runs/ anew, with a real vLLM, SGLang and transformers.
stored-runs: $(VENV)-vllm/vllm/$(VLLM_VERSION)/installed $(VENV)-sglang/sglang/$(SGLANG_VERSION)/installed \
		$(VENV)-transformers/transformers/$(TRANSFORMERS_VERSION)/installed
	export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 VLLM_TARGET_DEVICE=cpu SGLANG_USE_CPU_ENGINE=1; \
	for engine in vllm/$(VLLM_VERSION) sglang/$(SGLANG_VERSION) transformers/$(TRANSFORMERS_VERSION); do \
		name=$${engine%/*}; \
		PYTHONPATH=$(CURDIR)/$(VENV)-$$name/$$engine:$(CURDIR):$(CURDIR)/tests/$$name \
			$(VENV)-$$name/bin/python tests/stored_runs/record_$$name.py || exit 1; \
	done

## Test the inspector with another Python, without torch: make test-python PYTHON=python3.13
test-python: $(VENV)-$(notdir $(PYTHON))/test
	$(VENV)-$(notdir $(PYTHON))/bin/pytest --numprocesses 2 --dist loadfile $(INSPECTOR_TESTS)

## Test with the lowest versions that pyproject.toml declares.
test-lowest: $(VENV)-lowest/test
	OMP_NUM_THREADS=1 $(VENV)-lowest/bin/pytest --numprocesses 2 --dist loadfile \
		$(INSPECTOR_TESTS) tests/cli

clean:
	rm -rf $(VENV) $(VENV)-* build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras, so that only changed requirements are installed again. This folder is
# named before that of the engine, which requires it: pip would look for it on the index.
$(VENV)/engine: pyproject.toml engine_stub/pyproject.toml constraints.txt | $(BIN)/python
	@if [ "$$(uname -s)" = Linux ] && ! command -v nvidia-smi > /dev/null; then \
		echo 'No NVIDIA GPU: installing the CPU build of PyTorch into $(VENV), a download of 200 MB.'; \
		$(PIP) --retries 1 --timeout 30 --extra-index-url $(CPU_TORCH) \
			"$$(grep ^torch== constraints.txt)+cpu" || \
		echo 'It is not there: the build of your index follows; PyPI'"'"'s has 5.5 GB, with CUDA.'; \
	else \
		echo 'Installing PyTorch into $(VENV): on Linux 5.5 GB, with CUDA.'; \
	fi
	$(PIP) --editable '.[engine]' --editable ./engine_stub
	touch $@

$(VENV)/dev: pyproject.toml engine_stub/pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev]' --editable ./engine_stub
	touch $@ $(VENV)/engine

$(VENV)-docs/installed: pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet 'mkdocs-material>=9.6' 'mkdocstrings[python]>=1'
	touch $@

# Beside the other packages, of which numpy is replaced: Triton's interpreter needs an older one.
$(VENV)-triton/installed: | $(VENV)/dev
	$(BIN)/python -m pip install --quiet --upgrade --target $(VENV)-triton triton==$(TRITON_VERSION) numpy==2.3.5
	touch $@

$(VENV)-vllm/vllm/$(VLLM_VERSION)/installed: tests/vllm/install.sh tests/vllm/requirements.txt
	PYTHON=$(PYTHON) tests/vllm/install.sh $(VENV)-vllm $(VLLM_VERSION)
	touch $@

$(VENV)-sglang/sglang/$(SGLANG_VERSION)/installed: tests/sglang/install.sh tests/sglang/requirements.txt tests/sglang/stand_ins.py
	PYTHON=$(PYTHON) tests/sglang/install.sh $(VENV)-sglang $(SGLANG_VERSION)
	touch $@

$(VENV)-transformers/transformers/$(TRANSFORMERS_VERSION)/installed: tests/transformers/install.sh
	PYTHON=$(PYTHON) tests/transformers/install.sh $(VENV)-transformers $(TRANSFORMERS_VERSION)
	touch $@

$(VENV)-$(notdir $(PYTHON))/test: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

$(VENV)-lowest/test: pyproject.toml engine_stub/pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --constraint constraints-lowest.txt \
		--editable '.[engine,mcp,web,test]' --editable ./engine_stub
	touch $@
