# Two commands do everything on a machine with Python 3.11+ and make: `make demo` and `make test`.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test lint format screenshots man bench clean

## Watch the bundled engine.
demo: $(VENV)/engine
	$(BIN)/seqtop demo

## Lint, then every test. One torch thread a worker: two would fight over the same cores.
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

## Draw screenshots/ anew from a seeded run.
screenshots: $(VENV)/dev
	$(BIN)/python screenshots/make.py

## Write docs/seqtop.1 anew from the command's own help.
man: $(VENV)/dev
	$(BIN)/python docs/make_man.py

## Measure, each figure beside a peer's in the same run.
bench: $(VENV)/dev
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/seek.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A stamp a set of extras, so that changed requirements are installed and unchanged ones are not.
$(VENV)/engine: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[engine]'
	touch $@

$(VENV)/dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/engine
