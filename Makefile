# Every target builds .venv by itself on a fresh machine; when it is up to date that costs nothing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
BENCH  := .venv-bench
CORE   := .venv-core
# Two test processes with one thread each: torch's own threads would fight them for the cores.
JOBS   ?= 2

.PHONY: help setup test test-device faults mutants lint demo bench docs dist core clean

help:
	@echo "make demo   the paper in small, in about half a minute: a table and a report"
	@echo "make test   the whole test suite"
	@echo "make test-device  the tests of devices on a CUDA GPU of this machine, instead of a stand-in"
	@echo "make faults processes killed, full disks, damaged files, odd options: more trials than in make test"
	@echo "make mutants  small bugs planted in the mathematics, one by one: the tests must see each"
	@echo "make lint   ruff and mypy"
	@echo "make bench  speed against what one would use instead, as ratios"
	@echo "make docs   the documentation as a site, in site/"
	@echo "make dist   source archive and wheel, in dist/"
	@echo "make core   the wheel in an environment with torch and NumPy only: imports, README, tests"
	@echo "make setup  only create .venv"

setup: $(STAMP)

define CHECK
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mlmcgrad needs Python 3.11 or newer; name one with make PYTHON=...")'
endef

# The stamp is written last: an interrupted installation is simply done again.
$(STAMP): pyproject.toml constraints.txt
	@$(CHECK)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
	MLMCGRAD_DEVICE=standin OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/device

# On a GPU of this machine: the same tests, with results up to rounding.
test-device: $(STAMP)
	MLMCGRAD_DEVICE=cuda OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/device

faults: $(STAMP)
	MLMCGRAD_FAULTS=all OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/faults

# For example: make mutants MUTANTS='levels theory/*', or MUTANTS='--sample 10'.
mutants: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants --jobs $(JOBS) $(MUTANTS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The demo needs neither the test tools nor those of the site.
$(VENV)/.paper: pyproject.toml constraints.txt
	@$(CHECK)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -e $(STAMP) || $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[paper]'
	@touch $@

demo: $(VENV)/.paper
	@$(BIN)/mlmcgrad reproduce --preset minute --resume

# JAX, BlackJAX and pyERGM are only the other side of a comparison: they live in an environment of their own.
$(BENCH)/.installed: pyproject.toml constraints.txt
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	@touch $@

bench: $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/run.py

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --outdir dist >/dev/null
	$(BIN)/twine check --strict dist/*

# The library without its extras: whoever installs `mlmcgrad` alone gets torch and NumPy.
$(CORE)/.installed: pyproject.toml constraints.txt
	test -x $(CORE)/bin/python || $(PYTHON) -m venv $(CORE)
	$(CORE)/bin/python -m pip install --quiet -c constraints.txt torch numpy pytest pytest-timeout hypothesis
	@touch $@

core: $(CORE)/.installed dist
	$(CORE)/bin/python -m pip install --quiet --force-reinstall --no-deps dist/*.whl
	OMP_NUM_THREADS=1 $(CORE)/bin/python tests/core.py

clean:
	rm -rf $(VENV) $(BENCH) $(CORE) dist site runs
