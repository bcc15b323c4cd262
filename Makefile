# `make demo` and `make test` each set everything up from a fresh clone; Python 3.10 or newer is all they need.
# Both use .venv, which then holds the command: .venv/bin/precision-time
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable
WORKERS ?= 2
SLOW := $(BIN)/python -m pytest --durations 15
DEMO := resnet50 --gpu a100-80gb-sxm --gpus 8 --precision fp32,tf32,amp-fp16,amp-bf16 --batch-size 256

# Where this is set, every process that a test starts compiles the package again, and pytest its tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-stagger demo-serve test test-slow lint typecheck unit docs-check picture benchmark attack fit board \
	reproduce gpu-day clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | while IFS="$$(printf '\t')" read -r name what; \
		do printf '  make %-13s %s\n' "$$name" "$$what"; done

demo: .venv/.demo  ## set up (without torch) and compare precisions of ResNet-50 on 8 x A100: a table and out/demo.png
	@mkdir -p out
	@$(BIN)/precision-time compare $(DEMO) --plot out/demo.png

demo-stagger: .venv/.dev  ## really run two jobs that read the same data, together and staggered (needs nginx): out/stagger-demo
	@$(BIN)/python examples/stagger/demo.py

demo-serve: .venv/.serve  ## a server, three jobs, an outcome, the page's address, stop (STAY=1: until Ctrl-C)
	@$(BIN)/python examples/serve/demo.py $(if $(STAY),--stay)

test: lint typecheck unit  ## set up (with torch), then lint, types, imports and tests (six to eight minutes on two cores)

test-slow: .venv/.dev  ## studies and tests of many seconds in two processes, then tests of real rates, alone
	$(SLOW) -m "slow and not idle" --numprocesses $(WORKERS) --dist worksteal || $(SLOW) -m "slow and not idle" --last-failed
	$(SLOW) -m "slow and idle" || $(SLOW) -m "slow and idle" --last-failed

lint: .venv/.dev  ## ruff, the direction of imports, unused code
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	$(BIN)/vulture

typecheck: .venv/.dev  ## mypy
	$(BIN)/mypy

unit: .venv/.dev lint typecheck
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

docs-check: .venv/.dev  ## run every example of README.md and docs/
	$(BIN)/python -m pytest -m "" tests/test_docs.py

picture: .venv/.demo  ## draw docs/images/compare.png again
	@mkdir -p docs/images
	@$(BIN)/precision-time compare $(DEMO) --plot docs/images/compare.png

benchmark: .venv/.dev  ## measure speed and memory into benchmarks/results (about ten minutes)
	$(BIN)/python -m benchmarks.speed

attack: .venv/.dev  ## 20,000 mutated inputs and 5,000 related jobs with fresh seeds into benchmarks/results/attack.md
	$(BIN)/python -m benchmarks.attack --write

fit: .venv/.dev  ## fit all shipped parameters to the tables of data/ (about an hour)
	$(BIN)/precision-time fit

board: .venv/.dev  ## judge the parameters held out: benchmarks/results/ and the tables of README.md (about half an hour)
	$(BIN)/python -m benchmarks.accuracy

reproduce: .venv/.dev  ## train and judge the published predictors: out/reproduction and benchmarks/results/reproduce.md (18 minutes on two cores)
	$(BIN)/python -m benchmarks.papers
	cp out/reproduction/report.md benchmarks/results/reproduce.md
	$(BIN)/python -m benchmarks.papers.claims

gpu-day: .venv/.dev  ## what a GPU is needed for, in 40 minutes, resumable, into out/gpu-day for fit and evaluate
	$(BIN)/python -m benchmarks.rigs.gpu_day --output out/gpu-day

clean:  ## remove what make made
	rm -rf .venv out build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 10) else \
		f"precision-time needs Python 3.10 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/.demo: pyproject.toml | .venv/.made
	@echo "installing precision-time into .venv"
	@$(INSTALL) '.[plot]'
	@touch $@

.venv/.serve: pyproject.toml | .venv/.made
	@echo "installing precision-time with its server into .venv"
	@$(INSTALL) '.[serve]'
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/.made
	@echo "installing precision-time with torch, the model libraries and the development tools into .venv (minutes)"
	@$(INSTALL) '.[models,dev]' --constraint constraints.txt
	@touch $@ .venv/.demo .venv/.serve
