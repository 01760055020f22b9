# The project's commands; `make` alone lists them. Everything runs in .venv, which `make setup` builds once
# and builds on when pyproject.toml or constraints.txt changed.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test lint format viz viz-build screenshot screenshots mlflow frozen house mutations faults conformance bench results parameters docs docs-check constraints clean

export DO_NOT_TRACK := 1
export MLFLOW_DISABLE_TELEMETRY := true
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONUNBUFFERED := 1
unexport PYTHONDONTWRITEBYTECODE  # each process would compile the package anew

VENV := .venv
PY := $(VENV)/bin/python
KEDRO := $(PY) -m kedro
TORCH := 2.13.0
TORCH_ARGS ?=
EXTRAS := pipeline,attention,dialogue,molecules,formats,dev
SITE := data/08_reporting/viz

# ENV from the shell's environment counts only where it names a folder of conf/: other programs use that name too.
ifneq ($(origin ENV),command line)
ifeq ($(and $(ENV),$(wildcard conf/$(ENV))),)
override ENV :=
endif
endif
RUN_FLAGS = $(if $(ENV),--env "$(ENV)") $(if $(TASK),--pipelines "$(TASK)") $(if $(PARAMS),--params "$(PARAMS)") $(ARGS)

# The folder is part of the stamp's name: an environment that was moved points at the old one.
STAMP := $(VENV)/.stamp-$(shell { cat pyproject.toml constraints.txt; echo "$(CURDIR) $(EXTRAS)"; } | cksum | cut -d ' ' -f 1)
CANDIDATES := $(or $(PYTHON),python3.11 python3.12 python3.13 python3.14 python3)

help:  ## list the commands
	@echo "make run [ENV=smoke|gpu|busi|busi_outlined] [TASK=<pipeline>] [PARAMS=key=value,…] [ARGS='…']   and:"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1 \2/p' Makefile | awk '{ n = $$1; $$1 = ""; printf "  make %-12s%s\n", n, $$0 }'

setup: $(STAMP)  ## create .venv and install the pinned packages, once
	@:

$(STAMP): pyproject.toml constraints.txt
	@python=; for p in $(CANDIDATES); do \
	    "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { python=$$p; break; }; done; \
	  [ -n "$$python" ] || { echo "Python must be 3.11 or newer, got none of: $(CANDIDATES); install it or name one: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3" >&2; exit 1; }; \
	  echo "Setting up .venv with $$("$$python" --version): about 2 GB, a few minutes, once."; \
	  rm -f $(VENV)/.stamp-*; \
	  $(PY) -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { rm -rf $(VENV) && $(call create_venv,"$$python",$(VENV)); }
	@echo "  1/2 torch $(TORCH)"
	@$(PY) -m pip install -qq --no-compile -c constraints.txt "torch==$(TORCH)" $(TORCH_ARGS)
	@echo "  2/2 Kedro, MLflow and the other packages of constraints.txt"
	@$(PY) -m pip install -qq --no-compile -c constraints.txt --no-build-isolation -e ".[$(EXTRAS)]"
	@$(PY) -m compileall -qq -j 0 $(VENV)/lib || :  # pip compiles on one core; some files are for other Pythons
	@touch "$@"

# Debian splits ensurepip off Python: there the machine's own pip fills the environment.
create_venv = { $(1) -m venv $(2) >/dev/null 2>&1 || \
	    { rm -rf $(2) && $(1) -m venv --without-pip $(2) && $(1) -m pip --python $(2)/bin/python install -qq pip; }; }

run: $(STAMP)  ## prepare, train, evaluate and report: kedro run
	@[ -z "$(ENV)" ] || [ -d "conf/$(ENV)" ] || \
	  { echo "ENV must name a folder of conf/, got $(ENV); take one of:$$(cd conf && printf ' %s' */)" >&2; exit 1; }
	@$(KEDRO) run $(RUN_FLAGS)

test: $(STAMP)  ## run the whole test suite, a process per core; ARGS="-m 'not slow' -k losses" for a part
	@$(PY) -m pytest -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(STAMP)  ## check style, types and the direction of imports
	@failed=; \
	  $(PY) -m ruff check . || failed=1; \
	  $(PY) -m ruff format --check --quiet . || { failed=1; echo "Some files are not formatted; run make format."; }; \
	  $(PY) -m mypy || failed=1; \
	  $(VENV)/bin/lint-imports --no-logo || failed=1; \
	  [ -z "$$failed" ]

format: $(STAMP)  ## format the code and fix what can be fixed
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

viz: $(STAMP)  ## browse the pipelines and their data: Kedro-Viz on port 4141
	@$(KEDRO) viz run $(if $(ENV),--env "$(ENV)") $(ARGS)

viz-build: $(STAMP)  ## write the pipeline graph as a static site: data/08_reporting/viz
	@$(PY) docs/pipeline_graph.py build $(SITE) $(if $(ENV),--env "$(ENV)")
	@echo "The pipeline graph is in $(SITE); look at it with: $(PY) -m http.server 8000 -d $(SITE)"

screenshot: viz-build  ## take docs/images/pipeline.png and arm.png from the static site, with headless Chromium
	@$(PY) docs/pipeline_graph.py picture $(SITE) docs/images/pipeline.png
	@$(PY) docs/pipeline_graph.py picture $(SITE) docs/images/arm.png --box attention-train_grpo --size 1300x1400

screenshots: screenshot  ## take every picture of docs/images: graph, pages and MLflow of the last runs
	@$(PY) docs/screenshots.py $(ARGS)

mlflow: $(STAMP)  ## compare the runs: MLflow on port 5000, or PORT
	@$(PY) -m grpo_pipeline.tracking $(if $(PORT),--port $(PORT))

frozen: $(STAMP)  ## show that no number of the smoke runs differs from the commit BASE
	@$(PY) tests/frozen/same_numbers.py $(if $(BASE),--base "$(BASE)") $(ARGS)

house: $(STAMP)  ## show how the code is built, in figures beside their targets; ARGS="--no-steps --verbose"
	@$(PY) tests/house/figures.py $(ARGS)

mutations: $(STAMP)  ## show that the tests catch each one-line fault of the table; ARGS="--only core/" runs a part
	@$(PY) tests/mutations/run.py $(ARGS)

faults: $(STAMP)  ## kill, disturb and misuse runs, and count how they end; ARGS="--write" for docs/reliability.md
	@$(PY) tests/faults/fault_run.py $(ARGS)

conformance: $(STAMP)  ## write docs/conformance.md anew; installs the other libraries (extra `oracles`)
	@$(PY) -m pip install -qq -c constraints.txt --no-build-isolation -e ".[oracles]"
	@$(PY) -m pip install -qq "codetiming~=1.4" "hydra-core~=1.3" "ray~=2.60"
	@$(PY) -m pip install -qq --no-deps "verl~=0.9.1"  # beside versions that it does not ask for: some functions alone are called
	@$(PY) tests/conformance/generate.py

bench: $(STAMP)  ## measure the training step and what surrounds it
	@set -e; for b in benchmarks/*.py; do echo "== $$b"; $(PY) "$$b" $(ARGS); done

results: $(STAMP)  ## train every task with three seeds and write the tables of results: README.md, docs/results; ARGS="--jobs 2"
	@$(PY) docs/results.py $(ARGS)

parameters: $(STAMP)  ## write docs/parameters.md from the models of the parameters and conf/base
	@$(PY) docs/parameters.py

docs: $(STAMP)  ## build the site into data/08_reporting/site; the page of the last run and `make viz-build` are its samples
	@$(PY) -m pip install -qq -c constraints.txt --no-build-isolation -e ".[docs]"
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "The site is in data/08_reporting/site; look at it with: $(PY) -m http.server 8000 -d data/08_reporting/site"

docs-check: $(STAMP)  ## count words, pictures, links and commands of the documents, beside their limits
	@$(PY) docs/pages.py

constraints:  ## resolve pyproject.toml anew and write constraints.txt
	@set -e; t=$$(mktemp -d); trap 'rm -rf "$$t"' EXIT; $(or $(PYTHON),python3.11) -m venv "$$t/venv"; \
	  "$$t/venv/bin/python" -m pip install -qq "torch==$(TORCH)" $(TORCH_ARGS); \
	  "$$t/venv/bin/python" -m pip install -qq ".[$(EXTRAS),oracles,docs]"; \
	  { sed -n '/^#/p' constraints.txt; "$$t/venv/bin/python" -m pip list --format freeze \
	    | sed -e '/^pip==/d' -e '/^grpo[-_]pipeline==/d' -e 's/+[A-Za-z0-9.]*$$//'; } >"$$t/new"; \
	  cp "$$t/new" constraints.txt; echo "constraints.txt is new: $$(grep -c == constraints.txt) pins; run make test."

clean:  ## delete .venv and every cache; data/ and mlflow.db stay
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
