# Every command of the project. `make` alone lists them; each sets up what it needs.
#
#   make PYTHON=/path/to/python3.12 venv     another Python than the first that is new enough
#   make VENV=/tmp/venv check                another place for the virtual environment

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-dev
WHEEL := build/wheel
WHEELHOUSE := build/wheelhouse

# The machine's own python3 wherever it will do, so that a surprise is a surprise for everybody.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$python && break; done)
NO_PYTHON := raftmq needs Python 3.11 or newer: make PYTHON=/path/to/python3

# What `make check` leaves to `make test`: tests/durations.py says what is slow.
FAST := -q -m "not (cluster or powercut or soak or teeth) and (gate or not slow)" \
	--hypothesis-profile check -p no:cacheprovider
# `make check` alone refuses new tests that are slow: what a test takes depends on the machine as well.
# For each test a thread waits whether it hangs, to print the stacks: 2 s in all. Ctrl-C prints one, too.
GATE := --refuse-slow -o faulthandler_timeout=0
# Two shares that take about as long, one for each core.
FIRST_SHARE := tests/unit/client tests/unit/metadata tests/simulation tests/property
SECOND_SHARE := tests/unit tests/jepsen_like \
	--ignore tests/unit/client --ignore tests/unit/metadata

# A share ends after this many seconds, with the failures it has by then: where one test hangs, those
# behind it may hang as well, and the reader shall see the first.
WHOLE := -m "not soak" -p no:cacheprovider --session-timeout 2700
# Of shares that neither time nor devices of the machine bind: a process for each core.
PARALLEL := -n auto
SIM_ARGS = $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

# The same packages for every run of CI.
ifdef CI
export PIP_CONSTRAINT := $(CURDIR)/.ci/constraints.txt
endif

# A machine that asks Python to write no bytecode would compile all of it for each process.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo spark-demo check first-share second-share test cluster-share fault-share virtual-share unit-share static docs wheel wheelhouse constraints pythons quick-share sim crashes jepsen soak bench format clean

help:  ## This list
	@sed -En 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 20

venv: $(STAMP)  ## The virtual environment with raftmq and its tools (made when needed)

# One for each set of extras; the script knows when pip is needed.
$(VENV)/.installed-%: pyproject.toml .ci/install.py
	@$(or $(PYTHON),false) -c '$(NEW_ENOUGH)' || { echo '$(NO_PYTHON)' >&2; exit 1; }
	@$(PYTHON) .ci/install.py $(VENV) $*
	@touch $@

demo: $(VENV)/.installed-broker  ## See it work: 336,776 flights, three brokers, one killed halfway, nothing lost
	$(BIN)/python examples/flights_demo.py

spark-demo: $(VENV)/.installed-broker,spark  ## The flights through Spark (Java 17), killed halfway: no row twice
	$(BIN)/python examples/spark_demo.py

check: $(STAMP)  ## The fast gate, a minute: format, lint, types, layers, fast tests
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target static first-share second-share

first-share: $(STAMP)
	$(BIN)/pytest $(FAST) $(GATE) $(FIRST_SHARE)

second-share: $(STAMP)
	$(BIN)/pytest $(FAST) $(GATE) $(SECOND_SHARE)

# Everything, in shares of which SHARES run at a time. With four, two wait for processes and for time
# to pass; the simulations, on virtual clocks, take what the others leave of all cores and never more.
# On a machine that does other things as well, flipped bits were then not always mended in their time,
# so one by one until that is understood. Each folder of tests/ is in one of them.
SHARES ?= 1
test: $(STAMP)  ## Everything that CI runs: check, the wheel, the tests on a real kernel
	@$(MAKE) --no-print-directory --jobs $(SHARES) --output-sync=target \
		cluster-share fault-share virtual-share static docs wheel unit-share pythons

cluster-share: $(STAMP)
	$(BIN)/pytest $(WHOLE) tests/cluster

fault-share: $(STAMP)
	$(BIN)/pytest $(WHOLE) tests/powercut tests/jepsen_like tests/spark

# Slow while other shares run: not yet a hang of which pytest should print the stacks.
virtual-share: WHOLE += -o faulthandler_timeout=600
virtual-share: $(STAMP)
	$(BIN)/python -m tests.leisurely pytest $(WHOLE) $(PARALLEL) tests/simulation tests/property

unit-share: $(STAMP)
	$(BIN)/pytest $(WHOLE) $(PARALLEL) tests/unit

# The other Pythons that the classifiers name run the fast unit tests; one that the machine does not
# have is named. Their environments have neither Spark nor type checkers; what looks at the checkout
# as a whole is the same on each.
QUICK_SHARE := $(filter-out tests/unit/spark_io/,$(wildcard tests/unit/*/)) \
	--ignore tests/unit/client/typing
PYTHONS ?= 3.11 3.12 3.13
OTHERS = $(filter-out $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'),$(PYTHONS))
pythons:  ## The fast unit tests on each other Python of this machine
	@$(MAKE) --no-print-directory $(addprefix python-,$(OTHERS))

python-%:
	@for python in python$* ~/.pyenv/versions/$*.*/bin/python; do \
		if $$python -c '' 2>/dev/null; then \
			exec $(MAKE) --no-print-directory VENV=.venv-$* PYTHON=$$python quick-share; fi; done; \
	echo 'NOTHING WAS RUN ON PYTHON $*: this machine does not have it' >&2

quick-share: $(VENV)/.installed-tests
	$(BIN)/pytest $(FAST) $(QUICK_SHARE)

static: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# What a user gets is the wheel, not the checkout: each extra apart, in an empty environment.
wheel: $(STAMP)  ## What users install, built and tried in empty environments: build/wheel
	$(BIN)/python -m tests.wheel $(WHEEL)

# For hosts without a network, of this machine's Python and architecture.
wheelhouse: $(STAMP)  ## Everything that a node installs, as wheels: build/wheelhouse
	rm -rf $(WHEELHOUSE)
	$(BIN)/pip wheel --quiet --wheel-dir $(WHEELHOUSE) '.[broker,compression]'

constraints: $(STAMP)  ## Write the versions that are installed here into .ci/constraints.txt
	@echo '# Exact versions for CI, which work on every Python it has: made by `make constraints`.' \
		>.ci/constraints.txt
	$(BIN)/pip freeze --exclude-editable >>.ci/constraints.txt

sim: $(STAMP)  ## A simulated cluster: SEED=7 replays one, SEEDS=1000 sweeps, ARGS= for the rest
	$(BIN)/python -m tests.simulation.brokers $(SIM_ARGS)

crashes: $(STAMP)  ## Simulated crashes of one log, the same way
	$(BIN)/python -m tests.simulation.crash_sweep $(SIM_ARGS)

jepsen: $(STAMP)  ## A real cluster, broken in many ways for a minute (root): SEED=7, ARGS= for the rest
	$(BIN)/python jepsen-like run --nemesis all $(if $(SEED),--seed $(SEED)) $(ARGS)

docs: $(STAMP)  ## The pages as a site, with the reference out of docstrings: build/docs/index.html
	$(BIN)/sphinx-build -W --keep-going -E -q -b html docs build/docs

soak: $(STAMP)  ## The same tests with large counts, for before a release (root)
	$(BIN)/python -m tests.property.fuzz --count 1000000
	$(BIN)/python -m tests.simulation.crash_sweep --seeds 200
	$(BIN)/python -m tests.simulation.journal_sweep --seeds 40
	$(BIN)/python -m tests.property.damage --count 1000
	$(BIN)/python -m tests.powercut --cycles 200
	$(BIN)/python -m tests.cluster --rounds 40
	$(BIN)/python -m tests.cluster.brokers --rounds 48
	$(BIN)/python -m tests.cluster.groups --rounds 48
	$(BIN)/python -m tests.powercut.quorum --cycles 60
	$(BIN)/python -m tests.simulation.brokers --seeds 500
	$(BIN)/python -m tests.simulation.transacting --seeds 300
	$(BIN)/python -m tests.simulation.scheduling --seeds 300
	$(BIN)/python -m tests.jepsen_like.planted_runs
	$(BIN)/python jepsen-like suite --level 2
	$(BIN)/pytest -m soak --hypothesis-profile soak

bench: $(STAMP)  ## Every benchmark, one after the other: they want the machine for themselves
	@set -e; for file in benchmarks/[a-z]*.py; do \
		echo "== $$file"; $(BIN)/python -m benchmarks.$$(basename $$file .py); done

format: $(STAMP)  ## Format the code and repair what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove whatever these commands made, the virtual environment included
	rm -rf $(VENV) .venv-3.* build dist demo-data jepsen-results .mypy_cache .ruff_cache .pytest_cache
	rm -rf .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
