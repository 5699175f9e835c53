# All commands of the project; `make help` lists them. CONTRIBUTING.md explains them, scripts/ci.py calls them.

PYTHON ?= python3
# A newer interpreter for the second run of the tests: the newest one on PATH or under pyenv. Empty: there is none.
PYTHON_NEWEST ?= $(shell $(PYTHON) scripts/find_python.py 2>/dev/null)
CARGO ?= cargo
PYTEST_ARGS ?=
# The tests mostly wait, so more run at once than there are cores. The tests of one file run one after the other.
PYTEST_WORKERS ?= 5
BENCH_ARGS ?=
FUZZ_SECONDS ?= 20

VENV := .venv
NEWEST := .venv-newest
BENCH := .venv-bench
INTEROP := .venv-interop
WHEEL := .venv-wheel
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Of a release: for benchmarks.
PROGRAM := $(TARGET)/release/wirespeed-bench
NATIVE_SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find crates fuzz -name '*.rs' -o -name '*.html' -o -name Cargo.toml)
PIP := -m pip --disable-pip-version-check -q
# A test that failed beside others runs three times alone before it is a failure: tests/support/retry_failed.py. `make panics`
# runs tests/campaigns/panics, with a native module of its own.
pytest = -m pytest -q --ignore=tests/campaigns/panics -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder --again 3 --slowest-files 30 $(1) $(PYTEST_ARGS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- environments and builds ----

define make-venv
	@command -v $(CARGO) >/dev/null || { echo "Rust is missing: install it from https://rustup.rs" >&2; exit 1; }
	$(1) -m venv $(2)
	$(2)/bin/python $(PIP) install --upgrade "pip>=25.1"
	$(2)/bin/python $(PIP) install --group $(3)
	touch $@
endef

$(VENV)/ready: pyproject.toml
	$(call make-venv,$(PYTHON),$(VENV),dev)

$(NEWEST)/ready: pyproject.toml
	$(call make-venv,$(PYTHON_NEWEST),$(NEWEST),test)

# The programs that the Python peers need. They are run, not imported.
$(INTEROP)/ready: pyproject.toml
	$(call make-venv,$(PYTHON),$(INTEROP),interop)

.PHONY: environment
environment: $(VENV)/ready $(INTEROP)/ready $(if $(PYTHON_NEWEST),$(NEWEST)/ready) ## Make the virtual environments of the tests

# All tests use the profile `quick` of Cargo.toml, and one command builds every crate: dependencies are compiled once.
# `--workspace` always, as crates that are built alone have other features of the dependencies. The interpreter is the
# one below the virtual environment, so that the build need not wait for that.
base-python = $$($(1) -c 'import os, sys; print(os.path.realpath(sys._base_executable))')
cargo-quick = PYO3_PYTHON="$(call base-python,$(1))" $(CARGO) $(2) --profile quick --workspace

define build-native
	$(call cargo-quick,$(1)/bin/python,build)
	$(1)/bin/python scripts/link_native.py "$(TARGET)/quick/lib_native.so"
	touch $@
endef

# The native module in the source tree: changes of Python files need no second build.
$(VENV)/built: $(VENV)/ready $(NATIVE_SOURCES)
	$(call build-native,$(VENV))

# A module of its own name beside the first, because it is compiled for another version of Python.
$(NEWEST)/built: $(NEWEST)/ready $(NATIVE_SOURCES)
	$(call build-native,$(NEWEST))

$(PROGRAM): $(NATIVE_SOURCES)
	$(CARGO) build --release --quiet -p wirespeed-bench -p wirespeed-sans-io
	touch $@

.PHONY: build
build: $(VENV)/built ## Compile the native module and the echo server, quickly and with assertions

.PHONY: compile
compile: ## Compile all crates and their tests; needs no virtual environment
	$(call cargo-quick,$(PYTHON),build) --lib --bins --tests

.PHONY: build-newest
build-newest: $(if $(PYTHON_NEWEST),$(NEWEST)/built) ## Compile the native module for the newest interpreter that is here

.PHONY: build-panics
build-panics: $(VENV)/ready ## Compile a native module that panics on purpose, for tests
	PYTHON=$(VENV)/bin/python scripts/panics.sh --build

WHEEL_FILES := $(sort $(shell find python -name '*.py' -o -name '*.pyi' -o -name py.typed) README.md LICENSE)
# Their names, written when one was added or removed.
$(shell mkdir -p build && { echo '$(WHEEL_FILES)' | cmp -s - build/wheel-files || echo '$(WHEEL_FILES)' >build/wheel-files; })

dist/built: $(VENV)/ready $(NATIVE_SOURCES) $(WHEEL_FILES) build/wheel-files
	MATURIN_STRIP=false $(VENV)/bin/maturin build --release --quiet --interpreter $(VENV)/bin/python --out build/wheel
	$(VENV)/bin/python scripts/split_symbols.py build/wheel dist
	touch $@

.PHONY: wheel
wheel: dist/built ## Build a wheel for this platform and Python into dist, and its symbols into a file of their own

$(WHEEL)/ready: dist/built
	$(VENV)/bin/python -m venv --clear $(WHEEL)
	$(WHEEL)/bin/python $(PIP) install dist/*.whl
	touch $@

.PHONY: check-wheel
check-wheel: $(WHEEL)/ready ## Install the wheel of `make wheel` into a fresh environment and try it there
	$(VENV)/bin/python scripts/check_wheel.py $(WHEEL)/bin/python

.PHONY: demo
demo: build ## Connect to real servers over ws and wss, exchange messages, show what happened
	WIRESPEED_BENCH="$(TARGET)/quick/wirespeed-bench" $(VENV)/bin/python examples/demo.py

.PHONY: demo-cluster
demo-cluster: build ## Run two engines on a broker, a client on each and a publisher beside them, and show who gets what
	$(VENV)/bin/python examples/cluster.py

# ---- checks ----

# What .ci/run tests beyond the library: benchmarks, the conformance suite, the runs of the tests themselves.
TOOLS := $(wildcard tests/bench/test_*.py) tests/test_conformance.py tests/test_coroutine_tests.py tests/test_retry_failed.py tests/test_worker_crashes.py

.PHONY: test
test: ## Run the tests of the library on one interpreter, in the default matrix: at most ten minutes, builds included
	@echo "[1/4] making the virtual environment $(VENV)"
	@$(MAKE) --no-print-directory $(VENV)/ready
	@echo "[2/4] compiling"
	@$(MAKE) --no-print-directory compile build
	@echo "[3/4] running the Rust tests beside the next step: build/test-rust.log"
	@mkdir -p build
	@# Ctrl-C ends it too: sh ignores it for commands in the background.
	@env --default-signal=INT $(MAKE) --no-print-directory test-rust >build/test-rust.log 2>&1 & rust=$$!; \
	    echo "[4/4] running the Python tests"; \
	    $(MAKE) --no-print-directory test-python PYTEST_ARGS="$(TOOLS:%=--ignore=%) $(PYTEST_ARGS)" || failed=python; \
	    echo "[3/4] waiting for the Rust tests"; \
	    wait $$rust || { tail -n 60 build/test-rust.log; failed="$$failed rust"; }; \
	    if [ -n "$$failed" ]; then echo "failed: $$failed" >&2; exit 1; fi; \
	    echo "passed. make test-all runs everything, .ci/run what every change must pass"

.PHONY: test-all
test-all: test-rust ## Run all tests in the full matrix, and again on the newest interpreter that is here: before a release
	$(MAKE) test-python ROTATION=0/1
	$(MAKE) test-python-serial ROTATION=0/1
	$(MAKE) test-python-newest

.PHONY: test-rust
test-rust: ## Run the tests of the Rust crates and replay the fuzz corpora
	$(call cargo-quick,$(PYTHON),test) --quiet
	scripts/check-no-host.sh

# A share such as 3/12, which is added to the default matrix and to the short forms of long tables; 0/1: everything.
ROTATION ?=
rotation = $(if $(ROTATION),--rotation $(ROTATION))

.PHONY: test-python
test-python: build ## Run the Python tests that run beside each other; ROTATION=0/1 everything
	$(VENV)/bin/python $(call pytest,-m "not serial" $(rotation))

.PHONY: test-python-serial
test-python-serial: build ## Run the Python tests that measure time, one after the other
	$(VENV)/bin/python -m pytest -q -m serial $(rotation) --again 3 $(PYTEST_ARGS)

# A share of the files, such as 3/5: of these, and of all files that depend on the version of Python.
FILES ?=

.PHONY: test-python-newest
test-python-newest: build-newest ## Run the Python tests on the newest interpreter that is here; FILES=3/5 every fifth file
ifneq ($(PYTHON_NEWEST),)
	$(NEWEST)/bin/python $(call pytest,-m "not serial" $(if $(FILES),--files $(FILES)))
else
	@echo "no newer Python on this machine than $(PYTHON): tested on one version"
endif

.PHONY: coverage
coverage: $(if $(PYTHON_NEWEST),$(NEWEST)/ready) ## Measure which lines of Python and Rust the Python tests reach, on the newest interpreter: build/coverage
	PYTHON=$(NEWEST)/bin/python scripts/coverage.sh $(rotation) $(PYTEST_ARGS)

# Of Debian's development suite: 3.14 and 3.15, at the end of 2026.
.PHONY: test-debian
test-debian: ## Run the Python tests on an interpreter of Debian's newest, in a chroot made for it: PYTHON=3.15; needs root
	WORKERS=$(PYTEST_WORKERS) scripts/debian-pythons.sh $(if $(filter python%,$(PYTHON)),3.15,$(PYTHON)) $(rotation) --slowest-files 30 $(PYTEST_ARGS)

# How long, in which settings (a beginning or a pattern), or which schedule: a seed, with a whole setting.
SECONDS ?= 60
SETTING ?=
SEED ?=
LIVENESS_ARGS ?=

.PHONY: liveness
liveness: $(VENV)/built ## Make random calls on connections for SECONDS (60) and find calls that hang; SETTING= selects, SEED= with a whole SETTING= repeats one
	PYTHONPATH=tests $(VENV)/bin/python -m campaigns.liveness $(if $(SEED),--seed $(SEED) --setting $(SETTING),--seconds $(SECONDS) $(if $(SETTING),--setting '$(SETTING)')) $(LIVENESS_ARGS)

.PHONY: liveness-engine
liveness-engine: $(VENV)/built ## Make random calls on an engine and its sessions for SECONDS (60) and find calls that hang; SEED= repeats one
	PYTHONPATH=tests $(VENV)/bin/python -m engine.liveness $(if $(SEED),--seed $(SEED),--seconds $(SECONDS)) $(LIVENESS_ARGS)

# A kind and a seed repeat what was found; WHAT=protocol, heads or ends.
WHAT ?= all

.PHONY: differential
differential: build ## Send random bytes and calls through the core and through websockets and wsproto for SECONDS (60); SEED= with WHAT= repeats one
	PYTHONPATH=tests $(VENV)/bin/python -m campaigns.differential --what $(WHAT) $(if $(SEED),--seed $(SEED),--seconds $(SECONDS)) $(DIFFERENTIAL_ARGS)

.PHONY: fuzz-api
fuzz-api: build ## Call the Python API with any values for SECONDS (60)
	PYTHONPATH=tests $(VENV)/bin/python -m campaigns.api --seconds $(SECONDS) $(API_ARGS)

.PHONY: faults
faults: build ## Run every cell of the matrix of faults, stages and APIs: an hour
	$(VENV)/bin/python $(call pytest,--campaign --dist load tests/campaigns/faults)

.PHONY: attack
attack: build ## Attack all servers and clients, each for ATTACK_SECONDS (3), and print the table of SECURITY.md; ATTACK_ARGS='--kind sync'
	PYTHONPATH=tests $(VENV)/bin/python -m campaigns.attack --seconds $(ATTACK_SECONDS) $(ATTACK_ARGS)

ATTACK_SECONDS ?= 3
MIN ?= 30

.PHONY: soak
soak: build ## Run all servers and clients at once for MIN minutes (30) against peers that misbehave: fails where a line rises; a picture in build/soak
	PYTHONPATH=tests $(VENV)/bin/python -m campaigns.soak --minutes $(MIN) $(SOAK_ARGS)

.PHONY: panics
panics: $(VENV)/built ## Test that a panic in any layer ends one connection only
	PYTHON=$(VENV)/bin/python scripts/panics.sh $(PYTEST_ARGS)

.PHONY: sanitize
sanitize: $(VENV)/built ## Run the suites under AddressSanitizer, LeakSanitizer, ThreadSanitizer and Miri: an hour; needs nightly Rust
	scripts/sanitize.sh address
	scripts/sanitize.sh thread
	scripts/sanitize.sh miri

.PHONY: trust
trust: build ## Run a short form of everything that proves the library, in 20 minutes, and print one table
	$(VENV)/bin/python scripts/trust.py $(TRUST_ARGS)

# The ways in which each test reaches each peer: "all", or "one" of them.
WAYS ?= all

.PHONY: interop-peers
interop-peers: $(INTEROP)/ready ## Install and build the peers of `make interop`
	interop/setup.sh

.PHONY: interop
interop: $(VENV)/built interop-peers ## Test against other implementations: Python, Node, Go, Java, Chromium; installs them
	$(VENV)/bin/python -m pytest -q -n $(PYTEST_WORKERS) --dist loadgroup --slowest-files 30 --ways $(WAYS) $(PYTEST_ARGS) interop

.PHONY: lint
lint: lint-format lint-prose lint-types lint-rust lint-dependencies ## Check formatting, prose, lints, types, stubs, dependencies

.PHONY: lint-format
lint-format: $(VENV)/ready ## Check formatting, and lint Python
	$(CARGO) fmt --all --check
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

.PHONY: lint-prose
lint-prose: $(VENV)/ready ## Check spelling, and comments and documents for phrases that are hard to read
	$(VENV)/bin/codespell $$(git ls-files)
	$(VENV)/bin/python scripts/check_prose.py

.PHONY: lint-types
lint-types: $(VENV)/built ## Check types, and the stubs against the native module
	$(VENV)/bin/mypy
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python
	$(VENV)/bin/python -m mypy.stubtest wirespeed._native --mypy-config-file pyproject.toml

.PHONY: lint-rust
lint-rust: ## Lint Rust
	$(call cargo-quick,$(PYTHON),clippy) --all-targets --quiet -- -D warnings

.PHONY: lint-dependencies
lint-dependencies: ## Check licences, sources and security advisories of the Rust dependencies; installs cargo-deny
	scripts/check_dependencies.sh

.PHONY: generate
generate: $(VENV)/ready ## Write the signatures and docstrings of connect and serve from the table of options
	$(VENV)/bin/python scripts/generate_options.py

.PHONY: format
format: $(VENV)/ready ## Format everything
	$(CARGO) fmt --all
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

# Which ends, by names or patterns, which cases, and how many runs at once.
END ?= *
CASES ?= all
JOBS ?= 1

.PHONY: conformance
conformance: build ## Run the Autobahn suite against every end, ten minutes each, CASES=quick ten seconds each; END='server-*' chooses, JOBS=2 at once
	$(VENV)/bin/python conformance/run.py $(foreach end,$(END),'$(end)') --cases $(CASES) --jobs $(JOBS)

.PHONY: fuzz
fuzz: ## Fuzz every target for FUZZ_SECONDS (20): libFuzzer where nightly and cargo-fuzz are, else blind mutation
	fuzz/run.sh $(FUZZ_SECONDS)

# ---- benchmarks ----

# Of the interpreters that run (a pyenv shim may not), the newest: websocket-rs needs 3.12.
PYTHON_BENCH ?= $(or $(PYTHON_NEWEST),$(PYTHON))

$(BENCH)/ready: bench/requirements.txt pyproject.toml
	$(PYTHON_BENCH) -c 'import sys; sys.exit("the benchmarks need Python 3.12 or newer: set PYTHON_BENCH" if sys.version_info < (3, 12) else 0)'
	$(PYTHON_BENCH) -m venv $(BENCH)
	$(BENCH)/bin/python $(PIP) install --upgrade "pip>=25.1"
	$(BENCH)/bin/python $(PIP) install -r bench/requirements.txt
	touch $@

# With symbols, for profilers.
$(BENCH)/built: $(BENCH)/ready $(VENV)/ready $(NATIVE_SOURCES)
	MATURIN_STRIP=false VIRTUAL_ENV="$(CURDIR)/$(BENCH)" $(VENV)/bin/maturin develop --release --quiet
	touch $@

# The echo server and load generator of a release: that of the tests is slower.
bench-run = WIRESPEED_BENCH="$(if $(filter /%,$(PROGRAM)),,$(CURDIR)/)$(PROGRAM)" $(BENCH)/bin/python -m bench run

.PHONY: bench
bench: $(BENCH)/built $(PROGRAM) ## Measure the headline set, the cells of docs/benchmarks.md, in 40 minutes; continues after an interruption
	$(bench-run) --headline --resume $(BENCH_ARGS)

.PHONY: bench-all
bench-all: $(BENCH)/built $(PROGRAM) ## Measure all scenarios, in six hours; continues after an interruption; bench-SCENARIO measures one
	$(bench-run) --resume $(BENCH_ARGS)

.PHONY: bench-quick
bench-quick: $(BENCH)/built $(PROGRAM) ## Run every library of the benchmarks once, for a moment, in three minutes: shows that they work
	$(bench-run) --quick $(BENCH_ARGS)

.PHONY: bench-engine
bench-engine: $(BENCH)/built $(PROGRAM) ## Measure the scenarios of the engine: engine, cores, brokers
	$(bench-run) engine cores brokers $(BENCH_ARGS)

.PHONY: bench-report
bench-report: $(BENCH)/built ## Make docs/benchmarks.md, and the figures and pictures in README.md, from the newest record of each scenario
	$(BENCH)/bin/python -m bench report --clone . $(BENCH_ARGS)

.PHONY: instructions
instructions: $(WHEEL)/ready $(VENV)/built ## Count the instructions of the hot paths in the wheel against those that are kept (needs valgrind)
	$(VENV)/bin/python -m bench instructions --python $(WHEEL)/bin/python $(BENCH_ARGS)

# One scenario: bench-clients, bench-servers, ... `python -m bench list` shows their names.
bench-%: $(BENCH)/built $(PROGRAM)
	$(bench-run) $* $(BENCH_ARGS)

.PHONY: clean
clean: ## Remove everything that was built
	rm -rf target fuzz/artifacts build dist $(VENV) $(NEWEST) $(BENCH) $(WHEEL) conformance/report conformance/.autobahn
	rm -rf $(INTEROP) interop/peers/node/node_modules
	find python tests bench conformance interop -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/wirespeed/_native*.so
