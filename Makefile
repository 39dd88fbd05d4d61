# Every target works from a fresh clone: the environment is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: setup demo test retest test-slow lint typecheck bench clean

setup: $(READY)

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/python examples/quickstart.py

test: $(READY)
	$(BIN)/python -m pytest -m "not slow"

# The tests that failed last: one that fails again is broken, not a victim of a loaded machine.
retest: $(READY)
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none --timeout 600

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow --timeout 600

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
