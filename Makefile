# Two commands do everything: `make demo` and `make test`. Both make their own .venv first.
PYTHON ?= python3
BIN := .venv/bin
PYTEST = $(BIN)/pytest --quiet --numprocesses auto --dist worksteal

.PHONY: demo test test-all lint types tests docs clean

demo: .venv/installed  ## Ten schemes trained on generated data, who gains and who loses, and a report to look at
	$(BIN)/headtail compare --out demo

test: lint types tests docs  ## Everything that must hold

test-all: PYTEST += -m 'long or not long'
test-all: test  ## The same with the tests that take minutes each

lint: .venv/installed  ## Style, and the order of the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: .venv/installed
	$(BIN)/pyright

tests: .venv/installed  ## The second run checks every array's shape and dtype against its annotation
	$(PYTEST)
	$(PYTEST) --shapes tests/losses tests/laws/test_properties.py tests/test_head.py tests/rows/test_optim.py

docs: .venv/installed  ## Into docs/_build; a warning is an error
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt --build-constraint constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv docs/_build demo dist build .pytest_cache .ruff_cache .import_linter_cache .hypothesis
