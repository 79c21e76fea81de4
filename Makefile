# Two commands do everything, set-up included: `make quickstart` and `make test`. Everything lives in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: docs quickstart bench test test-oldest wheel lint notebooks clean install
.DEFAULT_GOAL := help

help:
	@echo "make quickstart   train and compare None, DropBlock and Gaussian Chaos on embedded images (minutes)"
	@echo "make test         the tests (under ten minutes on two cores)"
	@echo "make test-oldest  the tests with the oldest supported versions, in .venv-oldest (about 8 GB)"
	@echo "make wheel        build the wheel into dist/"
	@echo "make lint         ruff and mypy"
	@echo "make notebooks    execute the notebooks"
	@echo "make bench        ratios of speed against named peers (minutes); python -m benchmarks NAME for one"
	@echo "make docs         the documentation into site/, with executed notebooks (minutes; needs no network)"
	@echo "make clean        remove .venv and caches; runs/ is kept"

install: $(STAMP)

# Versions come from constraints.txt, so that a fresh machine gets what was tested here; CONSTRAINTS=/dev/null: the newest.
CONSTRAINTS ?= constraints.txt
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "chaosgate needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Use: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable '.[test,dev,notebooks,bench,slurm]'
	@touch $@

quickstart: $(STAMP)
	$(BIN)/chaosgate study run quickstart

bench: $(STAMP)
	$(BIN)/python -m benchmarks

test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal $(PYTEST)

# The lower bounds of pyproject.toml, exactly. Old releases warn about newer ones of what they import: not our mistakes.
OLDEST := .venv-oldest
$(OLDEST)/.installed: pyproject.toml scripts/lower_bounds.py
	$(PYTHON) -m venv $(OLDEST)
	$(PYTHON) scripts/lower_bounds.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(OLDEST)/constraints.txt \
	  --editable '.[test,notebooks,bench,slurm]'
	@touch $@

test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pip list
	$(OLDEST)/bin/python -m pytest --numprocesses 2 --dist worksteal -W default $(PYTEST)

wheel: $(STAMP)
	$(BIN)/python -m hatchling build -t wheel

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	CHAOSGATE_EXECUTE=1 NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

notebooks: $(STAMP)
	$(BIN)/jupyter execute notebooks/*.ipynb

clean:
	rm -rf $(VENV) $(OLDEST) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
