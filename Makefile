# Everything a fresh machine needs: `make demo` shows a real turn, `make test` runs every check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo run test lint types format bench protocol docs clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $(READY)

demo: setup
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh harness_examples/demo.sh

run: setup
	$(BIN)/peen run

test: lint types
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	@for name in store worker fanout turns stream models tools exec start growth recover durable; do $(BIN)/python -m bench.$$name --quick || exit 1; done

protocol: setup
	$(BIN)/python -m peen.wire.publish protocol

docs: setup
	$(BIN)/python -c 'from peen.settings import configuration_page; print(configuration_page(), end="")' > docs/configuration.md

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
