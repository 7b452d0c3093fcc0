# make demo: install, then collect, train, plan, read and report in minutes. make test: install, then the whole suite.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin

.PHONY: setup demo test check bench clean
setup: $(READY)

$(READY): pyproject.toml constraints.txt tools/system-libraries
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt uv
	$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt -e '.[envs,dev]'
	sh tools/system-libraries
	touch $@

demo: setup
	$(BIN)/sdjepa demo --out runs/demo

check: setup
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/pyright

test: check
	sh tools/system-libraries browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal  # two that share two cores, not four threads

bench: setup
	$(BIN)/sdjepa bench

clean:
	rm -rf $(VENV) build src/*.egg-info .ruff_cache .pytest_cache
