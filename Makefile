# Every target sets itself up in .venv on a fresh clone. PYTHON is the interpreter to build it with.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# The native step follows its sources: a pull that changes them rebuilds it.
NATIVE := .venv/.native
NATIVE_SOURCES := hatch_build.py $(wildcard src/outpace/native/cpp/*)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint native sanitize bench clean

help:
	@echo "make demo      fetch the default model, answer a prompt, compare plain and speculative"
	@echo "make test      lint, types, and all tests but the slow ones"
	@echo "make test-all  the same with the exhaustive ones"
	@echo "make native    build the native step after an edit of the C++"
	@echo "make sanitize  its C++ driver under the address, undefined-behaviour and thread sanitizers"
	@echo "make bench     the published tables, measured on this machine"
	@echo "make clean     remove .venv and everything that was built"

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: $(PYTHON) not found; install Python 3.11 or newer, or run make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $$($(PYTHON) --version) is too old; Outpace needs Python 3.11 or newer:" \
	    "make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

$(NATIVE): $(STAMP) $(NATIVE_SOURCES)
	$(BIN)/python hatch_build.py
	@[ ! -f src/outpace/native/_outpace_native.so ] || touch $@  # without a compiler: ask again

native: $(NATIVE)

sanitize: $(NATIVE)
	$(BIN)/pytest tests/unit/native/test_native_sanitizers.py

demo: $(NATIVE)
	@bash examples/demo.sh

lint: $(STAMP) $(NATIVE)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Most tests need one core: two files at a time halve the wait. One file stays in one process.
test: lint
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow"

test-all: lint
	$(BIN)/pytest -n 2 --dist loadfile

bench: $(NATIVE)
	$(BIN)/outpace bench
	@for script in benchmarks/*.py; do \
	  echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f src/outpace/native/_outpace_native.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
