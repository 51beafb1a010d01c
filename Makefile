# Every target makes what it needs: a virtual environment in .venv with the package installed from this checkout.
# It wants Python 3.11+, Java 17, 21 or 25, and the network once, for pip and for Spark's packages.
#
#   make demo                              the main job on a private PostgreSQL, shown live and proved at the end
#   make test                              lint, types, tests: some ten minutes on two cores
#   make test-all                          the same with the tests that take long (tests/nightly.txt): half an hour
#   make test-fast                         the tests that need neither a server nor Spark: under a minute, no lint
#   make test PYTEST_ARGS='-k slot -x'     some of the tests
#   make test-source SPARK=4.1.4           the data source beside another Spark, in a virtual environment of its own
#   make coverage                          all tests again, measured: lines and branches, as a table
#   make soak                              the long tests that `make test` leaves out, and every way to commit
#   make docs                              the documentation as a site with search, in site/
#   make bench                             receiving and decoding, measured beside pg_recvlogical
#   make fuzz                              arbitrary bytes against the decoders, a minute for each target
#   make lint                              lint and types only
#   make demo PYTHON=python3.12            with another Python (remove .venv first)

PYTHON ?= python3
PYTEST_ARGS ?=
SPARK ?= 4.1.*
FUZZ_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin

# With it, each process, and each daemon that tests start, would compile the project anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help docs demo test test-all test-fast test-source coverage soak bench fuzz lint format clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.demo
	$(BIN)/pgbridge demo

# Three processes, each with a server and a Spark session of its own: on two cores each waits a third of its time, in
# which lint has its turn.
test: $(VENV)/.test
	@$(MAKE) --no-print-directory lint & lint=$$!; \
	  $(BIN)/python -m pytest -n 3 --dist loadfile $(PYTEST_ARGS); tests=$$?; wait $$lint && exit $$tests

test-all:
	@$(MAKE) --no-print-directory test PYTEST_ARGS='--all $(PYTEST_ARGS)'

# In one process it takes half as long again: the tests wait, for threads and processes, more than they compute.
test-fast: $(VENV)/.test
	$(BIN)/python -m pytest --fast -n 2 $(PYTEST_ARGS)

# PySpark 4.1 leaves its sockets to the collector.
test-source:
	@$(MAKE) --no-print-directory VENV=.venv-spark .venv-spark/.test
	.venv-spark/bin/python -m pip install --quiet --disable-pip-version-check 'pyspark==$(SPARK)'
	.venv-spark/bin/python -m pytest -n 0 -W ignore::ResourceWarning \
	  -W ignore::pytest.PytestUnraisableExceptionWarning $(PYTEST_ARGS) \
	  tests/bridge/source/test_data_source.py tests/bridge/source/test_stream.py

# Apart from `test`, which it would slow down. Data of an earlier run would count, so they go first.
coverage: $(VENV)/.test
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --all -n 2 --dist loadfile $(PYTEST_ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

soak: $(VENV)/.test
	$(BIN)/python -m pytest -m soak --timeout 5400 $(PYTEST_ARGS)
	$(BIN)/python -m pytest --every-way tests/oracle $(PYTEST_ARGS)
	PGBRIDGE_SEEDS=10000 $(BIN)/python -m pytest -n 2 tests/simulation/test_seeds.py $(PYTEST_ARGS)

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks receive

fuzz: $(VENV)/.fuzz
	$(BIN)/python -m fuzz $(FUZZ_ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf $(VENV) .venv-spark .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* build dist site

# A stamp for each set of dependencies; `test` holds `demo`'s, `fuzz` holds `test`'s.
$(VENV)/.demo $(VENV)/.test $(VENV)/.fuzz: $(VENV)/.%: pyproject.toml | $(BIN)/python
	@echo 'Installing into $(VENV); the first time this downloads some 500 MB.'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,$*]'
	@[ '$*' = fuzz ] || echo 'Spark fetches its jars, and archives the classes that it loads.'
	@[ '$*' = fuzz ] || $(BIN)/pgbridge prepare || echo 'Without these, each start of Spark takes longer.'
	@[ '$*' != test ] || $(BIN)/pgbridge prepare --config tests/prepared.toml || echo 'The tests fetch those of S3.'
	@touch $@ $(if $(filter test,$*),$(VENV)/.demo)

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'pgbridge needs Python 3.11 or newer: make PYTHON=...' >&2; exit 1; }
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'); \
	  case "$$version" in 17|21|25) ;; *) \
	    echo 'pgbridge needs Java 17, 21 or 25, on the PATH or in JAVA_HOME' >&2; exit 1;; esac
	$(PYTHON) -m venv $(VENV)
