# Everything here sets itself up: a virtual environment in .venv, with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-all test-pages test-minimum docs lint bench bench-gpu soak clean help
MINUTES ?= 20

help:
	@echo "make demo      the rank cliff in about a minute, with a table, a verdict and a chart"
	@echo "make test      lint and tests (minutes)"
	@echo "make test-all  the same with the slow tests"
	@echo "make test-pages  the report and the explorer in a headless Chromium, where one is installed"
	@echo "make test-minimum  the lowest versions that are allowed, in an environment of their own"
	@echo "make docs      the site, with the explorer, into site/; links and commands are checked"
	@echo "make lint      ruff and mypy"
	@echo "make soak MINUTES=20  kills, full disks and fuzzers for so long; the table in soak/ grows with every call"
	@echo "make bench     speed against other libraries, into docs/reference/performance.md (35 minutes on two quiet cores)"
	@echo "make bench-gpu training steps on a GPU, where there is one"

demo: $(VENV)/core
	$(BIN)/headwise demo

test: lint
	$(BIN)/python -m pytest

test-all: lint
	$(BIN)/python -m pytest -m ""

test-pages: $(VENV)/dev
	$(BIN)/python -m pytest -n 0 -rs tests/report/test_pages.py tests/report/test_explorer.py

# Commands that touch every dependency, with the lowest versions that pyproject.toml allows.
test-minimum:
	@$(PYTHON) -m venv $(VENV)-minimum
	$(VENV)-minimum/bin/python tests/helpers/minimum.py > $(VENV)-minimum/constraints.txt
	$(VENV)-minimum/bin/python -m pip install --quiet --constraint $(VENV)-minimum/constraints.txt '.[usual]'
	$(VENV)-minimum/bin/python tests/helpers/minimum.py --smoke

docs: $(VENV)/docs
	$(BIN)/headwise explore --out docs/explorer.html --no-browser
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(BIN)/python tests/helpers/documents.py
	@echo "headwise: the site is in site/index.html"

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
	rm -rf $(VENV) $(VENV)-minimum build dist site

$(BIN)/python:
	@echo "headwise: creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "headwise needs Python 3.11 or newer; set PYTHON=... to name one"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# Stamps: an install happens when it never did, or when what it depends on has changed.
$(VENV)/core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "headwise: installing headwise into $(VENV) (a minute or two the first time)"
	@$(PIP) --editable '.[report]'
	@touch $@

$(VENV)/dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "headwise: installing headwise and its development tools into $(VENV) (two minutes the first time)"
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/core

$(VENV)/docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "headwise: installing headwise and what builds its site into $(VENV)"
	@$(PIP) --editable '.[docs,report]'
	@touch $@ $(VENV)/core
