# Every target sets up what it needs in .venv, so each works by itself on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install -q -c constraints.txt

.PHONY: demo test quick attack lint bench results browser clean

.venv/tables .venv/paper .venv/dev: .venv/%: pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP) -e '.[$*]'
	touch $@

demo: .venv/tables
	$(BIN)/anyorder demo

test: .venv/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

quick: .venv/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not attack and not kill and not ray and not browser and not slow"

# Tens of thousands of damaged files, twenty kills of `train` and of `reproduce`, two processes (about ten minutes).
attack: .venv/dev
	ANYORDER_ATTACK=long $(BIN)/python -m pytest tests/attack

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/dev
	$(BIN)/python -m benchmarks

results: .venv/paper
	$(BIN)/anyorder report results
	$(BIN)/python docs/copy_results.py

# Chromium for the tests that open a page in a browser (Debian and its kin, as root).
browser:
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium)

clean:
	rm -rf .venv build dist
