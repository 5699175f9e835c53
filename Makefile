# All commands of the project. `make help` lists them.

PYTHON ?= python3
# The newest interpreter that lies under pyenv, for the second run of the tests; empty where there is none.
PYTHON_NEWEST ?= $(shell $(PYTHON) scripts/find_python.py)
VENV := .venv
VENV_NEWEST := .venv-newest
BIN := $(VENV)/bin
CARGO ?= cargo
BENCH_BIN := target/release/wirespeed-bench

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
