# A table of contents: every line calls a tool, and no logic lives here.
# PYTHON makes the environment, TORCH is the build that goes into it, and TORCH_INDEX the package index that
# build comes from (empty: pip's own).

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
ARGS ?=

ENV := .venv/bin/python
PIP := $(ENV) -m pip --disable-pip-version-check install
AAM := $(ENV) -m aam

STUDY := --table demo/study/table.biom --metadata demo/study/metadata.tsv --rarefy-depth 1000
HELD_OUT := --split-column fold --test-fold 0 --group-column subject

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: .venv/.installed ## install aam, its tests and its linters into .venv (PYTHON, TORCH, TORCH_INDEX)

.venv/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; (3, 10) <= sys.version_info[:2] <= (3, 13) or sys.exit("aam needs Python 3.10 to 3.13, but $(PYTHON) is %d.%d; name another: make setup PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(PIP) --editable '.[test,lint]'
	touch $@

demo: setup ## simulate a study, then pretrain, train, predict and evaluate on it (about 3 minutes)
	rm -rf demo
	$(AAM) simulate --output-dir demo/study --samples 300 --seed 0
	$(AAM) pretrain $(STUDY) --tree demo/study/tree.nwk $(HELD_OUT) --output-dir demo/pre
	$(AAM) train $(STUDY) --metadata-column ph biome null --pretrained-encoder demo/pre/model $(HELD_OUT) --output-dir demo/tune
	$(AAM) predict --model demo/tune/model --table demo/study/table.biom --output demo/predictions.tsv
	$(AAM) evaluate --model demo/tune/model --table demo/study/table.biom --metadata demo/study/metadata.tsv --split demo/tune/split.tsv --group-column subject --output-dir demo/evaluate

test: setup ## run the tests on two processes (ARGS="-k name" and the like; AAM_BENCH_DATA adds the real data)
	$(ENV) -m pytest -n 2 $(ARGS)

lint: setup ## ruff, its formatter, mypy --strict and the layers of the package
	$(ENV) -m ruff check .
	$(ENV) -m ruff format --check .
	$(ENV) -m mypy
	.venv/bin/lint-imports

bench: setup ## measure speed and memory on this device (ARGS goes to `aam bench`)
	$(AAM) bench $(ARGS)

clean: ## remove the environment, the caches, build products and the demo
	rm -rf .venv .nox .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist demo
	rm -rf *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
