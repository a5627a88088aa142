# A table of contents: every line calls a tool, and no logic lives here.
#
# PYTHON       makes the environment and runs containers/build: 3.11 to 3.13
# TORCH        another build of PyTorch than the lock's, from TORCH_INDEX (empty: pip's own index)
# ENGINE       apptainer, singularity or a path (empty: the first on PATH)
# BASE DIGEST  another base for an image: a local root folder or SIF, or NAME@sha256:DIGEST
# DEFINITION   rocm or cuda: the definition of container-cpu; IMAGE_PYTHON: the Python inside
# SNAPSHOT     date of the archive of packages for another BASE, such as 20260601T000000Z
# ROUTE        definition, or layer if you may not build (empty: the one that works)
# DATA         folder of the studies that the shipped encoder learns from
# TABLE TREE METADATA     what a job on a cluster reads
# COLUMN MODEL OUT        metadata column to predict (more: ARGS="--metadata-column A B"), model folder, output (below the site's shared storage)
# SITE NODES TIME ACCOUNT  cluster (cosmos, or a profile), number of nodes, HH:MM:SS, account
# SEEDS CHAIN  seeds of several runs, which the tasks of a node share; number of jobs of one long run
# AFTER        number of the job that writes MODEL: this one starts when it has succeeded
# IMAGE        of the job (empty: the site's, containers/aam-rocm.sif); ENGINE=none uses no container
# ALLOW_CPU    1: a job may compute on the CPU of a site with GPUs
# SUBMIT       0: only print the script, or what a build of an image would run, need and fetch
# ARGS         more options of the tool that a target calls; of a job: --inline puts slurm/lib.sh into the script

PYTHON ?= python3
TORCH ?=
TORCH_INDEX ?=
ENGINE ?=
BASE ?=
DIGEST ?=
DEFINITION ?=
IMAGE_PYTHON ?=
SNAPSHOT ?=
ROUTE ?=
ARGS ?=
export TABLE TREE METADATA COLUMN MODEL OUT SITE NODES TIME ACCOUNT IMAGE ENGINE SUBMIT ARGS SEEDS CHAIN AFTER ALLOW_CPU
# Tests start hundreds of processes, which would compile the package each.
unexport PYTHONDONTWRITEBYTECODE

ENV := .venv/bin/python
AAM := $(ENV) -m aam
HTFT := $(ENV) -m examples.htft
EEG := $(ENV) -m examples.eeg
BUILD := $(PYTHON) containers/build
SOURCES := pyproject.toml setup.py MANIFEST.in README.md LICENSE $(filter-out %.pyc,$(wildcard aam/*.py aam/*/*.py aam/*/*/* plugins/aam-16s/aam_16s/*.py))
SLURM := $(PYTHON) slurm/generate

# In the folder of this file, wherever `make` is called.
EXAMPLE := $(dir $(lastword $(MAKEFILE_LIST)))examples/infant-age
STUDY := --table $(EXAMPLE)/table.biom --metadata $(EXAMPLE)/metadata.tsv

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo example-eeg example-htft test test-all lint bench encoder clean lock pin
.PHONY: pretrain-single pretrain-node pretrain-multi train predict unifrac doctor stage
.PHONY: container-rocm container-cuda container-cpu verify-rocm verify-cuda verify-cpu oci-rocm oci-cuda oci-cpu release

help: ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 21
	@sed -nE 's/^# ([A-Z][A-Z_ ]+)  +(.*)/    \1\t\2/p' $(MAKEFILE_LIST) | expand -t 21

setup: .venv/.installed ## install what containers/lock/cpu.txt holds, and aam, into .venv

.venv/.installed: pyproject.toml plugins/aam-16s/pyproject.toml containers/lock/cpu.txt containers/inside/environment.py
	$(PYTHON) containers/inside/environment.py .venv containers/lock/cpu.txt --editable . plugins/aam-16s --torch "$(TORCH)" --index "$(TORCH_INDEX)"
	touch $@

demo: setup ## learn the age of infants from a real study: train, predict, explain (1 to 2 minutes)
	rm -rf demo
	$(AAM) train $(STUDY) --tree $(EXAMPLE)/tree.nwk --metadata-column month --group-column host_subject_id --rarefy-depth 1000 --output-dir demo/run
	$(AAM) predict --model demo/run/model --table $(EXAMPLE)/table.biom --output demo/predictions.tsv
	$(AAM) explain --model demo/run $(STUDY) --taxonomy $(EXAMPLE)/taxonomy.tsv
	@echo "Open demo/run/report.html in a browser."

example-eeg: setup ## simulate EEG, learn age and sex of held-out subjects, also of shuffled labels (2 minutes)
	$(ENV) -m pip install --quiet --editable ".[eeg]"
	rm -rf demo/eeg
	$(EEG) simulate --output-dir demo/eeg/cohort
	$(EEG) train --cohort demo/eeg/cohort --output-dir demo/eeg/run --threads 1
	$(EEG) train --cohort demo/eeg/cohort --output-dir demo/eeg/shuffled --shuffle-labels --threads 1
	$(EEG) challenge --predictions demo/eeg/run/predictions.tsv --output demo/eeg/challenge.csv

example-htft: setup ## train a student of a small language model and print what it is compared with (2 minutes)
	rm -rf demo/htft
	$(HTFT) teach --output-dir demo/htft/teacher --threads 1
	$(HTFT) train --windows demo/htft/teacher/windows --output-dir demo/htft/student --threads 1
	$(HTFT) train --windows demo/htft/teacher/windows --output-dir demo/htft/published --variant published --threads 1
	$(HTFT) evaluate --windows demo/htft/teacher/windows --model demo/htft/student/model demo/htft/published/model

test: setup ## run the fast tests on two processes, within 5 minutes (ARGS="-k name" and the like)
	$(ENV) -m pytest -n 2 -m "not slow and not gpu and not cluster" $(ARGS)

test-all: setup ## run every test that needs neither a GPU nor a cluster; AAM_BENCH_DATA adds the real data
	$(ENV) -m pytest -n 2 $(ARGS)

lint: setup ## ruff, its formatter, mypy --strict and the layers of the package
	$(ENV) -m ruff check .
	$(ENV) -m ruff format --check .
	$(ENV) -m mypy
	$(ENV) -m mypy --strict containers/lib slurm/jobs
	.venv/bin/lint-imports

.PHONY: docs pictures results rivals
docs: setup ## build the documentation site into docs/build/html; the first time needs a network
	$(ENV) -c "import furo, myst_parser" 2>/dev/null || $(ENV) -m pip install -q -e ".[docs]"
	$(ENV) -m sphinx -b html -W --keep-going -n docs docs/build/html $(ARGS)

pictures: demo ## take the picture of README from the report of the demo (Chromium)
	$(ENV) docs/pictures.py

results: setup ## train the runs of the pages in demo/results, and write their figures (AAM_BENCH_DATA)
	$(ENV) docs/results.py demo/results

RIVAL_RUNS = infants-age infants-delivery mackerel students-braces students-sex adults-sex ibd oral-age \
    new-ibd new-parkinson new-obesity new-ibs

rivals: results ## compare the predictions of these runs with those of other programs, each in an environment of its own
	$(ENV) -m benchmarks rivals --run $(RIVAL_RUNS:%=demo/results/%) $(ARGS)

bench: setup ## compare the speed with a plain implementation, scikit-bio and ssu (aam profile measures this device)
	$(ENV) -m benchmarks speed $(ARGS)

encoder: setup ## train an encoder like 16s-v4 into plugins/aam-16s, from the studies in DATA, into OUT (MAFFT and FastTree; hours)
	$(ENV) -m aam_16s.recipe "$(DATA)" "$(OUT)" plugins/aam-16s/aam_16s/recipe/16s-v4.md

pretrain-single: ## submit pretraining on one device of a SLURM site: TABLE, TREE, OUT; SUBMIT=0 only prints
pretrain-node: ## the same on all devices of a node
pretrain-multi: ## the same on NODES nodes
train: ## submit training: TABLE, METADATA, COLUMN, MODEL, OUT
predict: ## submit prediction: TABLE, MODEL, OUT
unifrac: ## submit a UniFrac matrix: TABLE, TREE, OUT
doctor: ## submit aam doctor --ranks: what joins the devices of NODES nodes, and how fast
stage: ## submit a copy of TABLE, TREE and METADATA to shared storage: OUT
pretrain-single pretrain-node pretrain-multi train predict unifrac doctor stage:
	@$(SLURM) $(subst -,_,$@) --make

.PHONY: shell-node jobs
shell-node: ## open a shell in the image on a node of the site now: SITE, TIME, IMAGE
	@$(SLURM) shell --make

jobs: ## list your jobs of the last 30 days with state, time and memory (sacct)
	@$(SLURM) jobs

container-rocm: containers/aam-rocm.sif ## image for AMD GPUs: ROCm 6.3, PyTorch 2.7.1
container-cuda: containers/aam-cuda.sif ## image for NVIDIA GPUs: CUDA 12.6, PyTorch 2.7.1
container-cpu: containers/aam-cpu.sif ## image without GPU, from the same definitions with other arguments

containers/aam-%.sif: containers/aam-rocm.def containers/aam-cuda.def containers/lock/%.txt containers/pins.toml $(wildcard containers/inside/*.py containers/inside/*/*.py) $(SOURCES)
	$(BUILD) $* --submit "$(SUBMIT)" --engine "$(ENGINE)" --base "$(BASE)" --digest "$(DIGEST)" --python "$(IMAGE_PYTHON)" --definition "$(DEFINITION)" --snapshot "$(SNAPSHOT)" --route "$(ROUTE)"

verify-rocm: ## check an image against its sidecar, its lock and its contents (also verify-cuda, verify-cpu)
verify-rocm verify-cuda verify-cpu:
	$(BUILD) verify $(@:verify-%=%) --engine "$(ENGINE)"

oci-rocm: ## the same image as an OCI archive, with Buildah or Podman (also oci-cuda, oci-cpu)
oci-rocm oci-cuda oci-cpu:
	$(BUILD) oci $(@:oci-%=%) --submit "$(SUBMIT)" --engine "$(ENGINE)" --base "$(BASE)" --digest "$(DIGEST)" --python "$(IMAGE_PYTHON)" --definition "$(DEFINITION)" --snapshot "$(SNAPSHOT)"

release: setup ## check version, changelog and metadata, build wheels, sdist, pages and their digests, run the demo from the wheel (ARGS=--draft)
	$(ENV) -c "import twine, furo, myst_parser" 2>/dev/null || $(ENV) -m pip install -q -e ".[release,docs]"
	$(ENV) containers/build release $(ARGS)

lock: setup ## write containers/lock from pyproject.toml and containers/pins.toml where they changed, and slurm/options.json
	$(ENV) containers/build lock
	$(ENV) slurm/write_options.py

pin: ## write the current digests of the base images into the definitions (needs skopeo)
	$(BUILD) pin

clean: ## remove the environment, the caches, build products and the demo; images stay
	rm -rf .venv .nox .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist demo
	rm -rf *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
