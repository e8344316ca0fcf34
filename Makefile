# `make run` and `make test` need nothing but Python 3.10+ (and Go, for the S3 tests): they set up everything else themselves.
PYTHON ?= python3
BIN := .venv/bin
export PYTHONUNBUFFERED := 1

.PHONY: run test test-cluster lint types pytest minio helm prometheus chromium tcmalloc chaos docs clean \
  bench bench-exchange bench-scaling bench-workers bench-pipelines bench-scrape bench-algorithms

run: .venv/.run
	@$(BIN)/siloflow run $(ARGS)

test: .venv/.test lint types minio helm prometheus chromium tcmalloc pytest

lint: .venv/.test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: .venv/.test
	@$(BIN)/mypy

# Two test processes, one thread each: what the machine of a CI run has.
pytest: .venv/.test
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# The S3 tests run on a real MinIO, built once from source and cached outside the repository. Without Go they are skipped, loudly.
minio:
	@tests/get-minio > /dev/null || [ $$? -eq 3 ]

# The chart's tests render with a real Helm, built and cached in the same way.
helm:
	@tests/get-helm > /dev/null || [ $$? -eq 3 ]

# The metrics are scraped by Debian's Prometheus and pushed to its Pushgateway, installed if we may; their services are not started.
prometheus:
	@tests/get-prometheus > /dev/null || [ $$? -eq 3 ]

# The report is opened in Debian's chromium, installed if we may. Without it those tests are skipped, loudly.
chromium:
	@tests/get-chromium > /dev/null || [ $$? -eq 3 ]

# A silo trains with Debian's tcmalloc, installed if we may. Without it the tests of its memory are skipped, loudly.
tcmalloc:
	@tests/get-tcmalloc > /dev/null || [ $$? -eq 3 ]

# What needs a cluster: images built for real, runs on a real Kubeflow Pipelines. CONTRIBUTING.md says how to get one.
test-cluster: .venv/.test
	@[ -n "$$KUBECONFIG" ] && [ -n "$$KFP_HOST" ] || { echo "error: KUBECONFIG and KFP_HOST: expected a cluster to test on, found neither or only one; set both (CONTRIBUTING.md)" >&2; exit 2; }
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m cluster -s --timeout=3600 $(wildcard tests/cluster) tests/images $(ARGS)

# Every fault many times, JSON on stdout; writes docs/reliability.md. ARGS='--only store' runs a part of it.
chaos: .venv/.test minio
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.chaos --full $(ARGS)

# Everything in docs/performance.md, measured and written. ARGS='--only s3' refreshes a part, ARGS=--page only writes the page again.
bench: .venv/.test minio .peer/.installed
	@$(BIN)/python -m bench $(ARGS)

# The parts, JSON on stdout and nothing written: rounds against Flower with S3 and memory, one to fifty silos, one worker and two,
# what an engine adds to a round, what being scraped costs.
bench-exchange: .venv/.test minio .peer/.installed
	@$(BIN)/python -m bench --print --only exchange s3 memory

bench-scaling bench-workers bench-pipelines bench-scrape: bench-%: .venv/.test
	@$(BIN)/python -m bench --print --only $*

# What a step of each algorithm costs beside a plain loop, JSON on stdout. ARGS=--write puts the table into docs, ARGS='--only csac' runs a part.
bench-algorithms: .venv/.test
	@$(BIN)/python -m bench.algorithms $(ARGS)
	@$(BIN)/python -m bench --page

# The pages that are made from the code: commands, algorithms, components.
docs: .venv/.run
	@$(BIN)/python -m pipelines.reference_pages
	@$(BIN)/python -m pipelines.component_pages

# ---- set-up

.venv/.run: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "siloflow needs Python 3.10 or newer; set PYTHON=..." >&2; exit 2; }
	@echo "setting up .venv (the first time this downloads torch: some minutes)" >&2
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

.venv/.test: pyproject.toml .venv/.run
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# What rounds are measured against; never installed beside the product.
.peer/.installed:
	@echo "setting up .peer with Flower's simulation engine" >&2
	@$(PYTHON) -m venv .peer
	@.peer/bin/pip install --quiet --disable-pip-version-check 'flwr[simulation]>=1.20,<2' psutil
	@touch $@

clean:
	rm -rf .venv .peer build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
