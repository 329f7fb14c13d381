# Each target makes .venv and installs what it needs by itself; a second call starts at once.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Python keeps the bytecode of what it imports, whatever the environment says: every command starts sooner.
unexport PYTHONDONTWRITEBYTECODE
# Java that lives for a minute is not worth optimising.
BRIEF_JAVA := JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

.PHONY: demo test test-gpu check format docs tables bench bench-gpu clean

demo: $(READY)            ## what this project does, in a minute or two: built-in data, models, report
	$(BIN)/bert4rec demo -o demo --overwrite

test: $(READY)            ## every test
	OMP_NUM_THREADS=1 $(BRIEF_JAVA) $(BIN)/pytest -n 2 --dist worksteal

test-gpu: $(READY)        ## kernels and training on a GPU; skipped where there is none
	BERT4REC_GPU_LOG=results/gpu-tests.txt OMP_NUM_THREADS=2 $(BIN)/pytest -m gpu -n 16 tests/gpu

check: $(READY)           ## format, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: $(READY)          ## fix what a machine can fix
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(READY)            ## the documentation as web pages: docs/_build/html/index.html
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -q -W --keep-going --nitpicky docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

tables: $(READY)          ## write the tables of README.md and docs from results/
	$(BIN)/python -m bert4rec.paper.reporting.summary results README.md docs/results.md docs/guides/scaling.md

bench: $(READY)           ## speed and memory on this machine
	$(BIN)/python -m benchmarks

bench-gpu: $(READY)       ## speed on a GPU, as lines for results/; what --help tells, as in: make bench-gpu GPU="--only train"
	$(BIN)/python -m benchmarks.gpu $(GPU)

clean:                    ## remove what the other targets made
	rm -rf .venv demo bench docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@
