# Everything starts here. Both README commands, `make search` and `make test`, set up what they need.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python

.PHONY: help setup search test test-slow test-gpu lint bench wheel clean

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: $(VENV)/.ready ## make .venv and install the locked versions into it

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else \
	    "autodropout needs Python 3.11 to 3.13, %s is %d.%d; try make PYTHON=python3.12" % ("$(PYTHON)", *v))'
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

search: setup ## learn a policy on the bundled digits; leaves it, its masks and a report in out/digits
	$(RUN) -m autodropout search digits

test: setup ## the tests, without the slow ones; a file at a time on each of two cores
	$(RUN) -m pytest -n 2 --dist loadfile

test-slow: setup ## the slow tests
	$(RUN) -m pytest -m slow --timeout 3600

test-gpu: setup ## the tests that need a CUDA device
	$(RUN) -m pytest -m gpu

lint: setup ## ruff and mypy
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: setup ## what each layer costs, as ratios; writes results/layers-cpu.json
	$(RUN) benchmarks/layers.py

wheel: setup ## build the wheel into dist/
	$(RUN) -m build --wheel --no-isolation

clean: ## remove what was made
	rm -rf $(VENV) build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis
