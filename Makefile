# Two commands do everything: `make demo` and `make test`. Both create their own environment.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check
# `make LOCKED=1 ...` installs exactly the files of requirements-dev.lock in a new environment.
# The lock is also a constraint: older versions of pip take the newest package for an extra and then refuse it.
HASHED := --require-hashes --requirement requirements-dev.lock --constraint requirements-dev.lock
# Two workers per core, because much of the time is waiting. A worker without tests takes some of another one.
WORKERS = $(shell $(BIN)/python -c 'import os; print(2 * (os.cpu_count() or 1))')
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Without bytecode files, every process that a test starts would compile acorn again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs reference picture shots browser test check check-style check-mypy check-pyright run-tests release-check format bench bench-peers torture mutants prices litellm-range clean help

help:
	@echo "make demo     a tour of one minute, on a language model inside the process"
	@echo "make test     the tests, with format, lint and type checks beside them"
	@echo "make check    the checks alone"
	@echo "make browser  find or install the Chromium for the tests of the page"
	@echo "make format   format the code"
	@echo "make bench    the speed figures, as ratios to a baseline"
	@echo "make bench-peers  the same tasks with other frameworks; writes the table and the chart"
	@echo "make docs     the documentation as a static site, in site/"
	@echo "make reference  the documentation pages that are generated from docstrings"
	@echo "make torture  the long versions of the tests, with a report of what ran"
	@echo "make release-check  the tests of a clone, of a build and of the page in a browser"
	@echo "make mutants  how many random faults in the package the tests detect"
	@echo "make picture  the drawings of the documentation"
	@echo "make shots    the screenshots of the page, light and dark (needs a browser)"
	@echo "make prices   the table of prices, from LiteLLM"
	@echo "make release  wheel, source archive and bill of materials in dist/, tried in empty environments"
	@echo "make lock     requirements-dev.lock: the development packages, with hashes"
	@echo "make audit    the known vulnerabilities of the packages in requirements-dev.lock; needs the network"
	@echo "make cpu-times  the tests, with their CPU time"
	@echo "make litellm-range  a tool call with the oldest and the newest supported LiteLLM"

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "acorn needs Python 3.11 or later; try: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo 'Installing acorn and its dependencies into $(VENV). This happens once and takes a while.'
	$(PIP) $(if $(LOCKED),$(HASHED),--editable '.[local,web]')
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	@echo 'Installing the packages for checks and tests into $(VENV). This happens once.'
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
	@(printf 'var __index = '; cat site/search.json) > site/search.js  # for pages opened from files
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

# The checks run beside the tests. Make prints their output when they end, and that of the tests at once.
test: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory --jobs=4 --output-sync=target check-style check-mypy check-pyright run-tests

# The `+` makes the progress visible at once. A dry run (`make -n`) leaves it out, since `+` would run the tests.
IS_DRY_RUN = $(findstring n,$(firstword -$(MAKEFLAGS)))
run-tests:
	$(if $(IS_DRY_RUN),,+)@$(PYTEST)

# What a release needs beyond `make test`: a clone, a build, the whole page in a browser.
release-check: browser
	$(BIN)/python -m pytest -m release

# Install the system's package if that is allowed; otherwise print the command.
browser: $(VENV)/.installed-dev
	@$(BIN)/python tests/web/browser/find_browser.py || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > /dev/null; \
	  else \
	    echo 'No Chromium found. Install it: sudo apt-get install --no-install-recommends chromium fonts-dejavu-core'; \
	    echo 'or set its path: ACORN_BROWSER=/path/to/chromium'; exit 1; \
	  fi && $(BIN)/python tests/web/browser/find_browser.py; }

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-dev
	$(BIN)/python bench/run.py

bench-peers: $(VENV)/.installed-dev
	PYTHONPATH=bench $(BIN)/python -m peers.run $(ARGS)

torture: $(VENV)/.installed-dev
	@$(BIN)/python tools/torture.py $(ARGS)

mutants: $(VENV)/.installed-dev
	$(BIN)/python tools/mutants.py $(ARGS)

litellm-range: $(VENV)/.installed
	$(BIN)/python tests/live/try_litellm_range.py

clean:
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache dist site

prices: $(VENV)/.installed-dev
	$(BIN)/python tools/write_prices.py

.PHONY: release lock audit cpu-times

release: | $(BIN)/python
	@$(BIN)/python tools/release.py $(ARGS)

# Made by a tool in a separate environment, for every Python version and system that acorn supports.
lock:
	$(PYTHON) -m venv --clear .bench/lock
	.bench/lock/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1'
	.bench/lock/bin/uv pip compile pyproject.toml requirements-dev.txt --all-extras --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url --no-config --quiet --upgrade --output-file requirements-dev.lock

# The vulnerability database is on the network. Without it, the audit fails and says so.
audit:
	@$(PYTHON) -m venv --clear .bench/audit
	@.bench/audit/bin/python -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.10,<3' || \
	  { echo 'Cannot install pip-audit, so nothing was audited. Check the connection to the package index.'; exit 2; }
	@.bench/audit/bin/python tools/audit.py $(ARGS)

cpu-times: $(VENV)/.installed-dev
	$(PYTEST) -p tools.cpu_times $(ARGS)
