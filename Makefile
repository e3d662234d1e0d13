# Two commands: `make demo` and `make test`. Everything lives in .venv.

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

TRIALS ?= 1000
SEED ?= 0

.PHONY: demo test docs dist install bench fuzz test-lowest test-newest clean

demo: install
	$(VENV)/bin/gce demo --out demo

test: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest -n 2

docs: install
	$(VENV)/bin/sphinx-build -W -q docs docs/_build/html

# A wheel and a source archive, each installed and tried in an environment of its own.
dist:
	$(PYTHON) tests/dist.py

bench: install
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m bench

# TRIALS wrong files and numbers of all kinds, drawn from SEED.
fuzz: install
	$(VENV)/bin/gce warm  # or the trial that compiles takes more than 10 s
	cd tests && OMP_NUM_THREADS=1 ../$(VENV)/bin/python -m fuzz --trials $(TRIALS) --seed $(SEED)

# The tests with the lowest versions that pyproject.toml allows, and with the newest there are.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) tests/lowest.py > .venv-lowest/constraints.txt
	.venv-lowest/bin/pip install --quiet --constraint .venv-lowest/constraints.txt --editable '.[dev]'
	OMP_NUM_THREADS=1 .venv-lowest/bin/pytest -n 2

test-newest:
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/pip install --quiet --upgrade --editable '.[dev]'
	OMP_NUM_THREADS=1 .venv-newest/bin/pytest -n 2

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gce needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) .venv-lowest .venv-newest demo dist bench.json docs/_build
