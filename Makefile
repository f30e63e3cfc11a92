# `make` alone lists the targets. Nothing needs a step before it: each target makes what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := all,dev
SOURCES := src tests bench .ci
# Tests wait more than they work: five at a time fill two cores.
WORKERS ?= 5
# Further arguments for pytest, as in: make test PYTEST_ARGS='-k layout -x'
PYTEST_ARGS ?=
# Options of the drill, as in: make drill DRILL_ARGS='--messages 10000 --outage 20'
DRILL_ARGS ?=
# The world that `make simulate` replays, as a failed test names it: make simulate SEED=123
SEED ?=
# How long `make fuzz` searches, and to replay a find of it: make fuzz PART=frames SEED=123
MINUTES ?= 10
PART ?=
# The official SDK's own tests, which `make soak` runs with guarded receivers if they are there.
CONFORMANCE ?= ../shared/conformance
# Judges of other clients (.ci/judges.py), which `make soak` runs if they are there; they need root.
JUDGES ?= ../shared/judges
# Each Spark that is supported has an environment of its own, the oldest one first.
SPARKS := 4.0 4.1 4.2 4.3
FLOOR := $(firstword $(SPARKS))
# Options of the matrix, as in: make spark-matrix MATRIX_ARGS='--output json --only drain'
MATRIX_ARGS ?=
# One benchmark, or several with commas between: make bench ONLY=broker_send_vs_rabbitmq
ONLY ?=

# Where it is set, each of the hundreds of programs that the tests start would compile all modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-by-hash docs drill pictures test spark-floor spark-matrix simulate model fuzz soak lock lint types fmt bench

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  make %-13s %s\n", $$1, $$2}'

PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
# A drill begins without Spark, whose packages come while it runs: without `make setup` it installs less.
DRILL_STAMP := $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.installed-drill)

setup: $(STAMP) ## make .venv and install everything the targets need
	@echo "setup: $(VENV) is ready"

# What CI runs before its other targets: the same, but each package as `make lock` named it by hash,
# and with uv, which takes half of pip's processor time for it, and an eighth where its cache has them.
# Spark comes as source, so what builds it comes first, and nothing is fetched to build it.
LOCKED := $(VENV)/.installed-by-hash
setup-by-hash: $(LOCKED)
	@touch $(STAMP)
	@echo "setup: $(VENV) is ready, by hash"

INSTALL = $(PIP) --editable '.[$(EXTRAS)]'
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python --system-certs --no-deps
$(LOCKED): INSTALL = $(PIP) --no-deps --require-hashes -r .ci/build-requirements.txt && $(UV) --no-build-isolation --require-hashes -r .ci/requirements.txt && $(UV) --no-build-isolation --editable .
$(LOCKED): .ci/build-requirements.txt .ci/requirements.txt
$(STAMP) $(LOCKED): SIZE := about three minutes on an empty cache (Spark is 460 MB)
$(VENV)/.installed-drill: EXTRAS := broker,console
$(VENV)/.installed-drill: SIZE := half a minute on an empty cache
$(STAMP) $(LOCKED) $(VENV)/.installed-drill: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "setup: needs Python 3.11 or newer as $(PYTHON); name another with PYTHON=..." >&2; exit 1; }
	@echo "setup: installing twinbus[$(EXTRAS)] into $(VENV), $(SIZE)"
	@# A line every five seconds, until pip or this shell has ended.
	@s=0; while sleep 5 && kill -0 $$$$ 2>/dev/null; do s=$$((s + 5)); echo "setup: $$s s"; done & lines=$$!; trap 'kill $$lines' EXIT; trap 'exit 130' INT TERM; \
	  { test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); } && $(INSTALL)
	@touch $@

drill: $(DRILL_STAMP) ## kill the primary and watch nothing get lost
	@TWINBUS_INSTALL_SPARK="$(PIP) twinbus[spark,jre]" $(BIN)/twinbus drill --page $(DRILL_ARGS)

pictures: $(STAMP) ## take the pictures of the page from a drill, with Chromium
	@$(BIN)/python -m tests.browser.drill_page

# The types are checked beside the tests, which wait more than they work; told when these are over.
# Collected once before: else each worker compiles all tests and packages, two thirds of its start.
test: lint ## lint, types and all tests
	@$(BIN)/mypy --no-error-summary > $(VENV)/.types 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -m 'not soak' --collect-only -qq $(PYTEST_ARGS) > /dev/null 2>&1; \
	$(BIN)/python -m pytest -m 'not soak' -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS); tests=$$?; \
	wait $$types || { cat $(VENV)/.types; exit 1; }; exit $$tests

.PRECIOUS: .cache/spark-%/.installed
.cache/spark-%/.installed: pyproject.toml
	@echo "spark-$*: installing twinbus[$(EXTRAS)] with Spark $* into $(@D), about three minutes on an empty cache"
	@test -x $(@D)/bin/uv || { $(PYTHON) -m venv $(@D) && $(@D)/bin/python -m pip install -qq --disable-pip-version-check uv; }
	@echo 'pyspark==$*.*' > $(@D)/constraints.txt
	@$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python --system-certs --editable '.[$(EXTRAS)]' --constraint $(@D)/constraints.txt
	@touch $@

# Not in CI: it is all Spark tests a second time.
spark-floor: .cache/spark-$(FLOOR)/.installed ## the Spark tests on the oldest Spark that is supported
	@echo "spark-floor: tests/spark on Spark $(FLOOR), many minutes on two cores"
	@$(<D)/bin/python -m pytest -m 'not soak' tests/spark $(PYTEST_ARGS)

# Not in CI either: half an hour on two cores, and 2 GB of packages.
spark-matrix: $(SPARKS:%=.cache/spark-%/.installed) ## every verb on every Spark, classic and Connect
	@$(BIN)/python -m tests.spark.matrix $(SPARKS:%=.cache/spark-%/bin/python) $(MATRIX_ARGS)

docs: $(STAMP) ## the site of docs/, into build/docs/site
	@$(BIN)/python .ci/docs_site.py

simulate: $(STAMP) ## replay one simulated world; SEED=123
	@$(BIN)/python -m tests.simulation $(or $(SEED),1)

# Of the packages that only tests need, one does not take Python 3.11.0 to 3.11.4.
COMPILE := uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version
lock: ## name what the image and CI install by hash; needs uv
	@$(COMPILE) 3.11 --extra broker --extra console --extra identity --extra telemetry pyproject.toml --output-file deploy/requirements.txt
	@echo hatchling | $(COMPILE) 3.11 - --output-file deploy/build-requirements.txt
	@$(COMPILE) 3.11.5 --extra all --extra dev pyproject.toml --output-file .ci/requirements.txt
	@printf 'editables\nhatchling\nsetuptools\nuv\n' | $(COMPILE) 3.11 - --output-file .ci/build-requirements.txt

model: $(STAMP) ## every state of the protocol in spec/, and its planted faults
	@$(BIN)/python -m tests.model

fuzz: $(STAMP) ## hostile bytes against broker and syphon; MINUTES=10
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(if $(PART),--part $(PART)) $(if $(SEED),--seed $(SEED))

soak: $(STAMP) ## the long fault runs
	@$(BIN)/python -m pytest -m soak --timeout 7200 $(PYTEST_ARGS)
	@$(BIN)/python -m pytest tests/property --hypothesis-profile soak --timeout 7200 $(PYTEST_ARGS)
	@$(BIN)/python -m pytest tests/unit -m hypothesis --hypothesis-profile soak --timeout 7200 $(PYTEST_ARGS)
	@if [ -x $(CONFORMANCE)/run ]; then PYTHONPATH=. $(BIN)/python .ci/conformance.py --suite $(CONFORMANCE) --only data --guarded && PYTHONPATH=. $(BIN)/python .ci/conformance.py --suite $(CONFORMANCE) --only async --guarded; fi
	@if [ -x $(JUDGES)/run-go ]; then PYTHONPATH=. $(BIN)/python .ci/judges.py --judges $(JUDGES) && PYTHONPATH=. $(BIN)/python .ci/judges.py --judges $(JUDGES) --gateway; fi

lint: $(STAMP) ## ruff: rules and format
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/ruff format --quiet --diff $(SOURCES)

types: $(STAMP) ## mypy, strict
	@$(BIN)/mypy --no-error-summary

fmt: $(STAMP) ## format, and mend what ruff can mend
	@$(BIN)/ruff check --quiet --fix $(SOURCES)
	@$(BIN)/ruff format --quiet $(SOURCES)

bench: $(STAMP) ## ratios against peers; ONLY=name for one
	@$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY))
