# Two commands do everything: `make demo` and `make test`. Both make their own environment.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check
# `make LOCKED=1 ...`: the very files of requirements-dev.lock, in a new environment, and nothing else.
# As a constraint too: older versions of pip take the newest of what is needed with an extra, and refuse it then.
HASHED := --require-hashes --requirement requirements-dev.lock --constraint requirements-dev.lock
# Two workers for each core, as much of the time is waiting; a file stays with one of them.
WORKERS = $(shell $(BIN)/python -c 'import os; print(2 * (os.cpu_count() or 1))')
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Where Python may not keep what it compiled, every process that a test starts compiles acorn anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs reference picture shots browser test check check-style check-mypy check-pyright format bench bench-peers torture prices litellm-range clean help

help:
	@echo "make demo     a tour of a minute, on a language model inside the process"
	@echo "make test     format, lint and type checks, then the tests"
	@echo "make check    the checks alone"
	@echo "make browser  a Chromium for the tests of the page: which one is found, or how to get one"
	@echo "make format   rewrite the code in the house format"
	@echo "make bench    the speed figures, as ratios"
	@echo "make bench-peers  the same works done by others, each in an environment of its own; writes the table and the chart"
	@echo "make docs     the documentation as a site of plain files, in site/"
	@echo "make reference  the pages of the documentation that are written from docstrings"
	@echo "make torture  the long versions of the property tests"
	@echo "make picture  the pictures of the documentation"
	@echo "make shots    the pictures of the page, light and dark; they need a browser"
	@echo "make prices   the table of prices, from LiteLLM's"
	@echo "make release  wheel, source archive and bill of materials in dist/, tried in empty environments"
	@echo "make lock     requirements-dev.lock: what development needs, with hashes"
	@echo "make cpu-times  the tests, and where the processor's time goes"
	@echo "make litellm-range  a tool call with the oldest and the newest LiteLLM that can be installed"

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "acorn needs Python 3.11 or later; try: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo 'Installing acorn and what it needs into $(VENV), once; this takes a while.'
	$(PIP) $(if $(LOCKED),$(HASHED),--editable '.[local,web]')
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	@echo 'Installing what the checks and tests need into $(VENV), once.'
	$(PIP) --editable $(if $(LOCKED),. --no-deps,'.[local,web,postgres,fleet,mcp,otel]' --requirement requirements-dev.txt)
	@touch $@

demo: $(VENV)/.installed
	@$(BIN)/acorn demo

picture: $(VENV)/.installed
	$(BIN)/python tools/live_picture.py
	$(BIN)/python tools/draw_pictures.py

shots: browser
	$(BIN)/python tools/page_pictures.py

reference: $(VENV)/.installed-dev
	$(BIN)/python tools/write_reference.py

docs: reference
	$(BIN)/zensical build --strict --clean
	@(printf 'var __index = '; cat site/search.json) > site/search.js  # for pages that are read from files
	@echo 'Open site/index.html.'

check: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory --jobs=2 check-style check-mypy check-pyright

check-style:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check-mypy:
	$(BIN)/mypy

check-pyright:
	$(BIN)/basedpyright

test: check
	$(PYTEST)

# By the system's own packages where that is allowed; otherwise the command is printed.
browser: $(VENV)/.installed-dev
	@$(BIN)/python tests/web/browser/finding.py || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > /dev/null; \
	  else \
	    echo 'no Chromium; get one by: sudo apt-get install --no-install-recommends chromium fonts-dejavu-core'; \
	    echo 'or name one: ACORN_BROWSER=/path/to/chromium'; exit 1; \
	  fi && $(BIN)/python tests/web/browser/finding.py; }

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-dev
	$(BIN)/python bench/run.py

bench-peers: $(VENV)/.installed-dev
	PYTHONPATH=bench $(BIN)/python -m peers.run $(ARGS)

torture: $(VENV)/.installed-dev
	ACORN_TORTURE=1 $(PYTEST) tests/unit tests/behaviour tests/crash $(filter-out %/test_shared_limits.py,$(wildcard tests/contract/test_*.py)) \
	  tests/web/test_hostile.py tests/web/browser tests/house/test_release.py
	@echo 'Now, one after the other, what needs the machine for itself.'
	ACORN_TORTURE=1 $(BIN)/python -m pytest tests/contract/test_shared_limits.py tests/fleet

litellm-range: $(VENV)/.installed
	$(BIN)/python tests/live/try_litellm_range.py

clean:
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache dist site

prices: $(VENV)/.installed-dev
	$(BIN)/python tools/write_prices.py

.PHONY: release lock cpu-times

release: | $(BIN)/python
	@$(BIN)/python tools/release.py $(ARGS)

# By a tool in an environment of its own. Right for every Python and system that acorn knows.
lock:
	$(PYTHON) -m venv --clear .bench/lock
	.bench/lock/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1'
	.bench/lock/bin/uv pip compile pyproject.toml requirements-dev.txt --all-extras --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url --no-config --quiet --upgrade --output-file requirements-dev.lock

cpu-times: $(VENV)/.installed-dev
	$(PYTEST) -p tools.cpu_times $(ARGS)
