# Two commands do everything, set-up included: `make quickstart` and `make test`. Everything lives in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: quickstart test lint notebooks chaos clean install
.DEFAULT_GOAL := help

help:
	@echo "make quickstart   train and compare None, DropBlock and Gaussian Chaos on embedded images (minutes)"
	@echo "make test         the tests (under ten minutes on two cores)"
	@echo "make lint         ruff and mypy"
	@echo "make chaos        break training runs in many ways and resume them (about fifteen minutes)"
	@echo "make notebooks    execute the notebooks"
	@echo "make clean        remove .venv and caches; runs/ is kept"

install: $(STAMP)

# Versions come from constraints.txt, so that a fresh machine gets what was tested here.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "chaosgate needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Use: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,dev,notebooks,bench,slurm]'
	@touch $@

quickstart: $(STAMP)
	$(BIN)/chaosgate study run configs/study/quickstart.yaml

test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal $(PYTEST)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

notebooks: $(STAMP)
	$(BIN)/python scripts/run_notebooks.py notebooks/*.ipynb

chaos: $(STAMP)
	$(BIN)/python scripts/chaos.py $(CHAOS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
