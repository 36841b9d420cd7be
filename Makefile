# Every target sets up what it needs in .venv, so each works by itself on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install -q -c constraints.txt

QUICK := not attack and not kill and not ray and not browser and not slow

.PHONY: demo test quick attack lint docs package bench results browser clean

.venv/tables .venv/paper .venv/dev .venv/docs: .venv/%: pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP) -e '.[$*]'
	touch $@

demo: .venv/tables
	$(BIN)/anyorder demo

test: .venv/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

quick: .venv/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "$(QUICK)"

# Tens of thousands of damaged files, twenty kills of `train` and of `reproduce`, two processes (about ten minutes).
attack: .venv/dev
	ANYORDER_ATTACK=long $(BIN)/python -m pytest tests/attack

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site in build/site: every block and notebook is run, then every link and name is looked up (about ten minutes).
docs: export OMP_NUM_THREADS = 1
docs: .venv/dev .venv/docs
	$(BIN)/python docs/site/outputs.py
	$(BIN)/python -m pytest tests/project/test_documentation.py tests/project/test_recipes.py
	$(BIN)/python -m pytest tests/cli/test_cli.py -k "new_users or front_page"
	$(BIN)/python docs/site/notebooks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# dist/, and the quick tests of the source distribution with the wheel in an empty environment.
package: .venv/dev
	rm -rf dist build/package
	$(BIN)/python -m build
	$(PYTHON) -m venv build/package/venv
	build/package/venv/bin/pip install -q -c constraints.txt "$$(echo dist/*.whl)[dev]"
	build/package/venv/bin/python -c "import importlib.metadata as m; assert '](docs/' not in str(m.metadata('anyorder'))"
	tar -xzf dist/*.tar.gz -C build/package
	cd build/package/anyorder-* && rm -r src && ../venv/bin/python -m pytest tests -n 2 -m "$(QUICK)"

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
