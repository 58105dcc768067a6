# Everything here sets itself up: a virtual environment in .venv, with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-all test-pages lint bench bench-gpu soak clean help
MINUTES ?= 20

help:
	@echo "make demo      the rank cliff in about a minute, with a table, a verdict and a chart"
	@echo "make test      lint and tests (minutes)"
	@echo "make test-all  the same with the slow tests"
	@echo "make test-pages  the report's page in a headless Chromium, where one is installed"
	@echo "make lint      ruff and mypy"
	@echo "make soak MINUTES=20  kills, full disks and fuzzers for so long; the table in soak/ grows with every call"
	@echo "make bench     speed against other libraries, into docs/reference/performance.md (an hour)"
	@echo "make bench-gpu training steps on a GPU, where there is one"

demo: $(VENV)/core
	$(BIN)/headwise demo

test: lint
	$(BIN)/python -m pytest

test-all: lint
	$(BIN)/python -m pytest -m ""

test-pages: $(VENV)/dev
	$(BIN)/python -m pytest -n 0 -rs tests/report/test_pages.py

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/dev
	$(BIN)/python benchmarks/everything.py

soak: $(VENV)/dev
	PYTHONPATH=tests $(BIN)/python -m soak --minutes $(MINUTES)

bench-gpu: $(VENV)/dev
	$(BIN)/python benchmarks/gpu.py

clean:
	rm -rf $(VENV) build dist

$(BIN)/python:
	@echo "headwise: creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "headwise needs Python 3.11 or newer; set PYTHON=... to name one"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# Stamps: an install happens when it never did, or when what it depends on has changed.
$(VENV)/core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "headwise: installing headwise into $(VENV) (a minute or two the first time)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "headwise: installing headwise and its development tools into $(VENV) (two minutes the first time)"
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/core
