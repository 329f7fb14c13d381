# Each target makes .venv and installs what it needs by itself; a second call starts at once.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check format bench clean

demo: $(READY)            ## what this project does, in a few minutes: built-in data, models, report
	$(BIN)/bert4rec demo -o demo --overwrite

test: $(READY)            ## every test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

check: $(READY)           ## format, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: $(READY)          ## mend what can be mended by machine
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(READY)           ## speed and memory on this machine
	$(BIN)/python -m benchmarks

clean:                    ## remove what the other targets made
	rm -rf .venv demo bench .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@
