# Every command of the project. A fresh machine needs Python 3.11 and make, nothing else.

VENV := .venv
BIN  := $(VENV)/bin

# Candidates for the interpreter of .venv; `make setup PYTHON=/path/to/python` names one.
PYTHON ?= python3.11 python3.12 python3.13 python3 python

# What `make bench` measures: sqlite, postgresql (a server is started), or an address.
STORE ?= sqlite

PIP   = $(BIN)/python -m pip --disable-pip-version-check --quiet
DEMO := $(VENV)/.installed-demo
DEV  := $(VENV)/.installed-dev

# What `make test` runs, in this order.
STEPS := lint types imports unit crash

.DEFAULT_GOAL := help
.PHONY: help demo setup fmt lint types imports servers unit crash docs test check bench clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(DEMO) ## Set up .venv and run the failure lab (about two minutes the first time)
	$(BIN)/postroom lab

setup: $(DEV) ## Set up .venv with everything that working on Postroom needs

fmt: $(DEV) ## Format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(DEV) ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV) ## Check types: mypy on everything, pyright on the public API
	$(BIN)/mypy
	$(BIN)/pyright

imports: $(DEV) ## Check who imports whom
	$(BIN)/lint-imports --no-cache

servers: ## Install the database servers that the tests start (Debian, as root)
	@.ci/servers

unit: $(DEV) servers ## Run the tests that kill no processes, on two cores
	$(BIN)/python tests/servers.py $(BIN)/pytest -n 2 -rs -m "not crash"

crash: $(DEV) servers ## Run the tests that start and kill real processes
	$(BIN)/python tests/servers.py $(BIN)/pytest -rs -m crash

docs: $(DEV) ## Check the pages: links, code blocks, completeness
	$(BIN)/pytest tests/programs/test_house.py tests/programs/test_docs.py tests/programs/test_examples.py

test: $(DEV) ## Run every check and every test, then sum up
	@failed=; \
	for step in $(STEPS); do \
	  printf '\n==> make %s\n' "$$step"; \
	  $(MAKE) --no-print-directory "$$step" || failed="$$failed $$step"; \
	done; \
	printf '\n'; \
	for step in $(STEPS); do \
	  case " $$failed " in \
	    *" $$step "*) printf '  %-8s FAILED   (again: make %s)\n' "$$step" "$$step" ;; \
	    *) printf '  %-8s ok\n' "$$step" ;; \
	  esac; \
	done; \
	test -z "$$failed"

check: test ## The same as test: what CI runs

bench: $(DEV) ## Run the benchmarks; `make bench STORE=postgresql` those of that store
	$(BIN)/python -m bench --store $(STORE)

clean: ## Remove .venv, caches and what runs left behind
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEMO): requirements/demo.txt pyproject.toml | $(BIN)/python
	$(PIP) install --requirement requirements/demo.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): requirements/dev.txt requirements/demo.txt pyproject.toml | $(BIN)/python
	$(PIP) install --requirement requirements/dev.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(BIN)/python:
	@for candidate in $(PYTHON); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    found=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "Postroom needs Python 3.11 or newer; none of these is one: $(PYTHON)." >&2; \
	  echo "Install one, or name it: make $(firstword $(MAKECMDGOALS)) PYTHON=/path/to/python3.11" >&2; \
	  exit 1; \
	fi; \
	if ! "$$found" -c 'import venv, ensurepip' 2>/dev/null; then \
	  echo "$$found cannot make virtual environments: its venv or ensurepip module is missing." >&2; \
	  echo "On Debian and Ubuntu: apt-get install python3-venv (or python3.11-venv); then run make again." >&2; \
	  exit 1; \
	fi; \
	echo "Making $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
