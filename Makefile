# Every target works from a fresh clone: the environment is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: setup demo test test-slow lint typecheck bench clean

setup: $(READY)

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/python examples/quickstart.py

# Two at a time, since much of a test is waiting for processes to start; by root only, who can give
# each shared memory of its own (tests/conftest.py). Some look at all processes: those run alone.
JOBS ?= $(if $(filter 0,$(shell id -u)),2,0)
# These start servers, kill processes and wait against deadlines, on whatever machine CI has: what
# fails there once is run once more, and the log tells of both runs. So many failures are of the
# machine, or of everything, and are told at once.
PYTEST := $(BIN)/python -m pytest --maxfail 30 $(if $(CI),--reruns 1 -r fER)

test: $(READY)
	$(PYTEST) -m "not slow and not alone" -n $(JOBS) --dist loadfile
	$(PYTEST) -m "not slow and alone"

test-slow: $(READY)
	$(PYTEST) -m "slow and not alone" --timeout 600 -n $(JOBS) --dist loadfile
	$(PYTEST) -m "slow and alone" --timeout 600

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(READY)
	$(BIN)/pyright

bench: $(READY)
	$(BIN)/python benchmarks/warm_epoch.py
	$(BIN)/python benchmarks/requests_per_shard.py
	$(BIN)/python benchmarks/sparse_filter.py
	$(BIN)/python benchmarks/shuffle_quality.py
	$(BIN)/python benchmarks/scale.py --shards 200000
	$(BIN)/python benchmarks/conversion.py
	$(BIN)/python benchmarks/streaming_dataset.py
	$(BIN)/python benchmarks/second_epoch.py
	$(BIN)/python benchmarks/cold_epoch.py
	$(BIN)/python benchmarks/shared_cache.py
	$(BIN)/python benchmarks/polling.py

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist
