# Everything sets itself up: Python 3.11+, make and a C compiler are all that a machine needs.
PYTHON ?= python3
UV_VERSION := 0.13.8
UV := .tools/bin/uv
BIN := .venv/bin
OUT ?= out
# Three workers a core, as far as memory reaches: tests of control planes wait more than they compute, and a worker and
# its control plane take 2 GB. A file's tests stay on one worker, and files in the order of tests/support/suite_order.py.
# Properties are tried on the same examples each time: what a change broke is told from what was always broken. Others
# are looked for by `make property` and `make unit`.
WORKERS := $(shell $(PYTHON) -c "import os; gib = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 30; \
	print(max(2, min(3 * os.cpu_count(), gib // 2 - 1)))")
EVERYTHING := -n $(WORKERS) --dist loadfile --no-loadscope-reorder --hypothesis-profile=ci
# Pods and Services of the node: its network namespace has no other way out.
NODE_HOSTS := --allow-hosts=127.0.0.1,::1,localhost,10.87.0.0/24,10.88.0.0/24
# Compiling every module again for each process that the tests start would take a third of their time.
unexport PYTHONDONTWRITEBYTECODE
# A fifth of the processor time of helm and kubectl, which tests start hundreds of times, is Go's collector.
export GOGC ?= 400
# Control planes of tests live for minutes: each program collects only as it comes near a GiB.
everything: export GOGC = off
everything: export GOMEMLIMIT = 1GiB

.DEFAULT_GOAL := help
.PHONY: help setup demo control-plane test node gpu autoscalers coverage lint style types docs reference compiled collected everything unhurried unit property bench browser images version release-check clean

help: ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(UV):
	$(PYTHON) -m venv .tools
	.tools/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

.venv/.synced: pyproject.toml packages/joulie/pyproject.toml packages/joulie-lab/pyproject.toml uv.lock $(UV)
	$(UV) sync --quiet --locked --compile-bytecode --python $(PYTHON)
	@touch $@

setup: .venv/.synced ## create .venv from the lock file

demo: setup ## the whole loop live, on a fake cluster with simulated hardware; about a minute
	$(BIN)/joulie demo --report $(OUT)/demo
	@echo "the same on a real control plane: $(BIN)/joulie demo --control-plane"
	@echo "the published experiment, 2,500 nodes: $(BIN)/joulie simulate published-2500 --report $(OUT)/published.html"

control-plane: setup ## kube-apiserver, etcd, scheduler, KWOK, Helm, Prometheus, PostgreSQL: found, else built or fetched once
	$(BIN)/python -m joulie_lab.control_plane

lint: style types ## format, lint, types, import rules, lock file

style: setup
	$(BIN)/ruff format --check packages tests scripts
	$(BIN)/ruff check packages tests scripts
	$(BIN)/lint-imports
	$(UV) lock --quiet --check

types: setup
	$(BIN)/mypy

docs: setup ## build the documentation, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

reference: setup ## regenerate the reference pages from the code
	$(BIN)/python scripts/generate_reference.py
	$(BIN)/python scripts/chart_settings.py

browser:
	@sh tests/ui/ensure-browser.sh

# Every worker would compile the engines, and find out what UTF-8 can say, for itself where nothing is cached.
.venv/.compiled: .venv/.synced $(shell find packages -name '*.py')
	@$(BIN)/joulie simulate quick > /dev/null
	@$(BIN)/joulie bench native --small > /dev/null
	@$(BIN)/joulie bench openb --small > /dev/null
	@$(BIN)/python -c "from hypothesis.strategies import text; text().validate()"
	@touch $@

compiled: .venv/.compiled

unit: compiled ## the fast tests alone
	$(BIN)/pytest tests/unit -m "not slow" -n auto

property: compiled ## the invariants, on examples that Hypothesis looks for
	$(BIN)/pytest tests/property -m "not slow" -n auto

# Each worker would compile all modules and tests for itself where that was not done yet, a minute of a new checkout.
collected: setup
	@$(BIN)/pytest --collect-only -qq > /dev/null || true  # pytest itself says what is wrong

everything: setup
	$(BIN)/pytest $(EVERYTHING)

unhurried:
	@nice -n 19 $(MAKE) --no-print-directory types docs

# Types and pages, more than a minute of a core in a new checkout, are checked while tests of control planes wait.
test: setup browser control-plane ## everything that CI runs
	@$(MAKE) --no-print-directory --output-sync -j 2 compiled style collected
	@$(MAKE) --no-print-directory -j 2 everything unhurried

# NODE_OPTIONS=--if-possible succeeds where the machine cannot run a node.
node: setup control-plane ## the chart's pods on a real kubelet with a modelled machine; needs root and Debian, minutes
	$(BIN)/python -m joulie_lab.control_plane.node $(NODE_OPTIONS) $(BIN)/pytest tests/node -p no:cacheprovider $(NODE_HOSTS) $(NODE_ARGS)

gpu: setup ## NVML on the NVIDIA GPUs of this machine, which nobody else uses: reads only, a minute
	JOULIE_TEST_GPU=1 $(BIN)/pytest tests/gpu

autoscalers: setup control-plane ## side by side with Karpenter, which is built first: minutes
	JOULIE_TEST_AUTOSCALERS=1 $(BIN)/pytest tests/control_plane/test_autoscaler_karpenter.py

# Programs that tests of a control plane start are not measured: it would slow them down several times.
coverage: setup compiled ## lines and branches that the tests reach which need neither control plane nor browser
	$(BIN)/pytest $(EVERYTHING) --ignore tests/control_plane --ignore tests/ui --ignore tests/release --cov --cov-report=term

bench: setup ## the full benchmarks with their committed ranges
	$(BIN)/joulie bench parity
	$(BIN)/joulie bench equal-work
	$(BIN)/joulie bench extender
	$(BIN)/joulie bench binding
	$(BIN)/joulie bench attribution
	$(BIN)/joulie bench profiles

version: setup ## set the one version everywhere: make version VERSION=1.2.3
	$(BIN)/python scripts/release/version.py $(VERSION)
	$(UV) lock --quiet
	$(BIN)/python scripts/render_manifest.py

images: setup ## list the images that the chart uses, for a registry of your own
	$(BIN)/python scripts/list_images.py

release-check: setup ## build and verify all of a release that needs no publishing, into out/release
	$(BIN)/python scripts/release/check.py

clean: ## remove what make created
	rm -rf .venv .tools site $(OUT)
