# Two commands: `make demo` and `make test`. Everything lives in .venv.

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

.PHONY: demo test docs install bench clean

demo: install
	$(VENV)/bin/gce demo --out demo

test: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest -n 2

docs: install
	$(VENV)/bin/sphinx-build -W -q docs docs/_build/html

bench: install
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m bench

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gce needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) demo bench.json docs/_build
