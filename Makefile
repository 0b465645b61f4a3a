# Everything a person or CI runs. `make setup` is done on demand by the other targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
STAMP := $(VENV)/.installed

.PHONY: setup serve test test-fast test-cluster test-clients check docs format help

setup: $(STAMP)  ## .venv with the spectra command

$(STAMP): pyproject.toml .ci/constraints.txt
	@echo "Installing torch, Ray and about 150 other packages into $(VENV), once; this waits for downloads ..."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e '.[dev]'
	touch $(STAMP)

serve: setup  ## start the server with the demo model on PORT (default 8000)
	@echo "The first start also indexes texts, compiles and measures, for about a minute; later ones find that kept."
	@exec $(BIN)/spectra serve --port $(PORT)

test: setup  ## the tests but lengthy ones, in three processes, the first for those that start a Ray cluster
	$(BIN)/python -m pytest -n 3 -m "not lengthy$(if $(CI),, and not clients)"

test-fast: setup  ## the tests that start no Ray cluster
	$(BIN)/python -m pytest -n 2 -m "not cluster and not clients"

test-cluster: setup  ## as root: what takes long, and all tests on machines that are namespaces of this one
	$(BIN)/python -m pytest -m "machines or lengthy"

check: setup  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-clients: setup  ## public clients, installed from the package index, against a server; `make test` with CI=1 has them
	$(BIN)/python -m pytest tests/newcomer/clients

docs: setup  ## the documentation as a site, in site/html
	$(BIN)/python -m tools.site

format: setup  ## rewrite the code to the format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/: *(setup)? *## */\t/'
