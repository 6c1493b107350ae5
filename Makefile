# tf_sparse_ps: what a developer runs. `make` lists the targets; tools/ holds what is longer than a line.
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory --silent

PYTHON ?= python3
VENV := .venv
VENV_215 := .venv-tf215
PY := $(VENV)/bin/python
NATIVE := $(PY) tools/native.py
CXX_FILES = $(shell git ls-files -co --exclude-standard '*.cc' '*.h')

# Arguments for a part of a suite:  make cc-test GTEST_ARGS=--gtest_filter='Group*'   make pytest PYTEST_ARGS='-k merge'
GTEST_ARGS ?=
PYTEST_ARGS ?=
CRASH_ARGS ?=
MUTATE_ARGS ?=
SOAK_ARGS ?=
BENCH_ARGS ?=
TRAIN_ARGS ?= --ranks 4

# What connects the ranks of `make train`: tensorflow, horovod (which is built first), or auto, Horovod if it is built.
ENGINE := auto
ifeq ($(filter auto horovod tensorflow,$(ENGINE)),)
$(error ENGINE=$(ENGINE) is unknown. Ranks are connected by ENGINE=horovod or ENGINE=tensorflow. Leave ENGINE out, \
or set ENGINE=auto, to use Horovod only if it is already built)
endif

export TF_CPP_MIN_LOG_LEVEL ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv environment core package horovod horovod-if-built venv-tf215 horovod-tf215 \
        build test-build cc-test-build train quick test nightly \
        pytest pytest-quick keras2-smoke pytest-nightly plan-accuracy \
        multirank-nightly sharded-nightly restarts-nightly \
        multirank-tensorflow sharded-tensorflow restarts-tensorflow matrix oracle fuzz-ranks soak \
        cc-test cc-quick simd asan tsan crash crash-build crash-nodes mutate s3 \
        bench bench-peers cc-bench wheel wheels sdist wheel-smoke wheels-smoke bazel lint lint-python format clean docs

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## */  \1\t/' | expand -t 24

# --- set-up ---
# .venv grows in layers, and each leaves a stamp there: what training needs; the developers' tools; Horovod; the package.
# `$(MAKE) -j` makes targets side by side. Core needs no TensorFlow, so it compiles while pip installs.

environment:
	@$(MAKE) -j $(VENV)/.training core

$(VENV)/.training: requirements-tf221.txt requirements-train.txt tools/venv.sh
	@STAMP=.training PYTHON=$(PYTHON) tools/venv.sh $(VENV) $(filter %.txt,$^)

core:
	@$(PYTHON) tools/native.py core

package: environment  ## the package in place, importable in .venv; no Horovod, no tools
	@$(MAKE) $(VENV)/.editable
	@$(NATIVE)

$(VENV)/.editable: $(VENV)/.training pyproject.toml setup.py
	@echo "pip: tf_sparse_ps, editable, into $(VENV)"
	@flock $(VENV)/.lock $(PY) -m pip install -qq --no-build-isolation --no-deps --editable . && touch $@

build:  ## all that developers need: the package in place, Horovod and tools
	@$(MAKE) -j venv core
	@$(MAKE) -j horovod package

test-build:  ## all that tests need: the same, and the C++ tests
	@$(MAKE) -j venv core
	@$(MAKE) -j horovod package cc-test-build

cc-test-build: $(VENV)/.requirements
	@$(NATIVE) --variant=debug compile-test

venv: $(VENV)/.requirements  ## .venv: TensorFlow 2.21 (Keras 3), tools

$(VENV)/.requirements: $(VENV)/.training requirements-dev.txt
	@PYTHON=$(PYTHON) tools/venv.sh $(VENV) requirements-tf221.txt requirements-train.txt requirements-dev.txt

horovod: $(VENV)/.horovod  ## Horovod in .venv

$(VENV)/.horovod: $(VENV)/.training $(shell find tools/horovod -type f)
	@tools/horovod/build.sh $(VENV)

horovod-if-built: $(VENV)/.training
	@tools/horovod/build.sh --if-built $(VENV)

venv-tf215: $(VENV_215)/.requirements  ## .venv-tf215: TensorFlow 2.15.1 (Keras 2), tools

$(VENV_215)/.requirements: requirements-tf215.txt requirements-train.txt requirements-dev.txt tools/venv.sh
	@MAX_PYTHON=3.11 PYTHON=$(PYTHON) tools/venv.sh $(VENV_215) $(filter %.txt,$^)

horovod-tf215: $(VENV_215)/.horovod  ## Horovod in .venv-tf215

$(VENV_215)/.horovod: $(VENV_215)/.requirements tools/horovod/build.sh
	@tools/horovod/build.sh $(VENV_215)

# --- the main job ---

train: environment  ## sets up what it needs and trains a click-through model on 4 ranks;  make train ENGINE=horovod
	@$(MAKE) -j package $(if $(filter auto,$(ENGINE)),horovod-if-built) $(filter horovod,$(ENGINE))
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" python examples/train_ctr.py --collectives $(ENGINE) $(TRAIN_ARGS)

# --- tests ---
# tools/test_stages.py runs the stages of a tier in order and ends with a table.

quick: build  ## the inner loop, at most two minutes: lint, and fast tests of every package
	@$(PY) tools/test_stages.py --tier quick

test: test-build  ## what a change must pass, fifteen minutes on two cores; sets everything up
	@$(PY) tools/test_stages.py --tier test

nightly: build horovod-tf215  ## all tests, hours;  make nightly FROM=matrix goes on at a stage
	@$(PY) tools/test_stages.py --tier nightly $(if $(FROM),--from $(FROM))

# More at a time than there are cores, because many tests wait; those of several ranks wait less. File by file: modules
# share what their fixtures have launched.
TEST_PY = $(PY)
WORKERS = 3
PYTEST = $(TEST_PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10
RESTARTS = $(wildcard tests/multirank/test_rest*.py) tests/multirank/test_preempted_jobs.py
SHARDED = $(wildcard tests/multirank/test_sharded*.py)

pytest: WORKERS = 4
pytest: build  ## the Python tests of every day
	@$(PYTEST) tests $(PYTEST_ARGS)

pytest-quick: build  ## fast Python tests of every package
	@$(PYTEST) tests -m quick $(PYTEST_ARGS)

keras2-smoke: build venv-tf215  ## Python tests of layers, training and distribution under TensorFlow 2.15 (Keras 2)
	@$(MAKE) pytest TEST_PY=$(VENV_215)/bin/python PYTEST_ARGS='-m "keras2_smoke and not nightly" $(PYTEST_ARGS)'

PLAN_ACCURACY = tests/cli/test_plan_accuracy.py
pytest-nightly: build  ## the Python tests of one process that are marked nightly
	@$(PYTEST) tests -m nightly $(addprefix --ignore=,tests/multirank tests/matrix $(PLAN_ACCURACY)) $(PYTEST_ARGS)

plan-accuracy: build  ## estimated step times against measured ones, so no other test runs meanwhile
	@$(TEST_PY) -m pytest $(PLAN_ACCURACY) -m nightly $(PYTEST_ARGS)

multirank-nightly: build  ## the tests of several ranks that are marked nightly, except for the next two
	@$(PYTEST) tests/multirank -m nightly $(addprefix --ignore=,$(RESTARTS) $(SHARDED)) $(PYTEST_ARGS)

sharded-nightly: build  ## the tests of sharded tables on several ranks
	@$(PYTEST) $(SHARDED) -m nightly $(PYTEST_ARGS)

restarts-nightly: build  ## the tests of several ranks that kill a job and start it again
	@$(PYTEST) $(RESTARTS) -m nightly $(PYTEST_ARGS)

multirank-tensorflow: build  ## the tests of several ranks over TensorFlow's own collectives, except for the next two
	@$(PYTEST) tests/multirank -m "" $(addprefix --ignore=,$(RESTARTS) $(SHARDED)) --collectives=tensorflow $(PYTEST_ARGS)

sharded-tensorflow: build  ## the tests of sharded tables over TensorFlow's own collectives
	@$(PYTEST) $(SHARDED) -m "" --collectives=tensorflow $(PYTEST_ARGS)

restarts-tensorflow: build  ## the tests of restarts over TensorFlow's own collectives
	@$(PYTEST) $(RESTARTS) -m "" --collectives=tensorflow $(PYTEST_ARGS)

# Cases of one run share a job of two ranks:  make matrix PYTEST_ARGS='-k clipping'
matrix: build  ## the docs' tables of what works with what, row by row, on two ranks
	@$(TEST_PY) -m pytest tests/matrix -m nightly $(PYTEST_ARGS)

# make pytest-tf215, make matrix-tf215 and so on: the same under TensorFlow 2.15 (Keras 2). Tests of several ranks need
# Horovod's launcher there, too.
$(addsuffix -tf215,multirank-nightly sharded-nightly restarts-nightly matrix): horovod-tf215
$(addsuffix -tf215,multirank-tensorflow sharded-tensorflow restarts-tensorflow): horovod-tf215
%-tf215:
	@$(MAKE) venv-tf215 && $(MAKE) $* TEST_PY=$(VENV_215)/bin/python

oracle: build  ## random jobs that are killed and restarted, compared with a NumPy model;  make oracle DRAWS=100
	@$(PY) -m tests.oracle $(if $(DRAWS),--draws $(DRAWS),--minutes 30)

fuzz-ranks: build  ## random programs in which one rank does something else;  make fuzz-ranks DRAWS=300
	@$(PY) -m tests.fuzz_ranks $(if $(DRAWS),--draws $(DRAWS),--minutes 35)

soak: build  ## 300 calls of `fit` in one process, which must not grow
	@$(PY) -m tests.soak $(SOAK_ARGS)

cc-test: $(VENV)/.requirements  ## the C++ tests, with asserts and fault points
	@$(NATIVE) --variant=debug test $(GTEST_ARGS)

# Without the suites that write much or run beside other processes.
CC_SLOW = *Stress*:*Point*:*Kill*:*Damage*:Direct*:Failing*:Record*:Scan*:StorageReserver*:TableRemoval*:OutgrownRange*:*Grows*
cc-quick: $(VENV)/.requirements  ## the C++ tests that take milliseconds
	@$(NATIVE) --variant=debug test --gtest_filter='-$(CC_SLOW)' $(GTEST_ARGS)

asan: $(VENV)/.requirements  ## the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(NATIVE) --variant=asan test $(GTEST_ARGS)

tsan: $(VENV)/.requirements  ## the C++ tests under ThreadSanitizer
	@$(NATIVE) --variant=tsan test $(GTEST_ARGS)

# Of what a processor has: each set of instructions must give the same bits. C++ tests compare with loops that are not
# vectorized, Python's with NumPy.
SIMD = baseline $(shell grep -qw avx2 /proc/cpuinfo && echo avx2) $(shell grep -qw avx512bw /proc/cpuinfo && echo avx512)
simd: build  ## row optimizers, roundings and sums with each set of instructions
	@set -e; for variant in $(SIMD); do \
	  $(NATIVE) --variant=$$variant test --gtest_brief=1 --gtest_filter='*Row*:*Sum*:*Wire*:*Initializer*:*Merge*:*Bag*'; \
	  $(NATIVE) --variant=$$variant package; \
	  (cd build/native/$$variant && \
	    TSPS_TEST_PACKAGE=$$PWD PYTHONPATH=$$PWD $(CURDIR)/$(PY) -m pytest -q -p no:cacheprovider \
	    $(CURDIR)/tests/core/test_narrow_rows.py $(CURDIR)/tests/core/test_slot_widths.py); \
	done

crash-build: build
	@$(NATIVE) --variant=crash

# From the folder of the variant with fault points, so that it is what `import tf_sparse_ps` finds.
crash: crash-build  ## kills writers at random instants and checks every table afterwards
	@cd build/native/crash && PYTHONPATH=$(CURDIR) $(CURDIR)/$(PY) -m tests.crash $(CRASH_ARGS)

crash-nodes: crash-build  ## kills ranks while nodes with sharded tables vote on a step, and starts the job again
	@cd build/native/crash && PYTHONPATH=$(CURDIR) $(CURDIR)/$(PY) -m tests.crash.nodes $(CRASH_ARGS)

# There, too, for the control.
mutate: crash-build  ## changes files of groups at random, and looks what readers and writers make of them
	@cd build/native/crash && PYTHONPATH=$(CURDIR) $(CURDIR)/$(PY) -m tests.mutate $(MUTATE_ARGS)

s3: build  ## served versions and checkpoints travel through an S3 server on this machine
	@PYTHON=$(PYTHON) tools/venv.sh .venv-s3 requirements-s3.txt
	@PYTHONPATH=$(CURDIR) .venv-s3/bin/python tests/serving/s3_program.py

cc-bench: $(VENV)/.requirements  ## times of core's kernels alone
	@$(NATIVE) bench $(BENCH_ARGS)

bench: build  ## benchmarks, each beside a peer;  make bench BENCH_ARGS=kernels
	@$(PY) -m benchmarks $(BENCH_ARGS)

bench-peers: build venv-tf215 horovod-tf215  ## environments of the libraries that the benchmarks compare with (--peers)
	@PYTHON=$(PYTHON) tools/bench_peers.sh

bazel: $(VENV)/.requirements  ## BUILD with Debian's Bazel
	@tools/bazel/check.sh $(VENV)

# --- packages ---

wheel: environment  ## dist/*.whl
	@rm -rf build/lib* build/bdist* dist && $(PY) -m pip wheel -qq --no-deps --wheel-dir dist . && ls dist/*.whl

sdist: venv  ## dist/*.tar.gz, and a wheel that is built from it alone
	@rm -rf dist/*.tar.gz dist/from-sdist && $(PY) -m build --sdist --no-isolation --outdir dist . >/dev/null
	@$(PY) -m pip wheel -qq --no-build-isolation --no-deps --wheel-dir dist/from-sdist dist/*.tar.gz && ls dist/*.tar.gz

wheel-smoke: wheel venv-tf215  ## that one wheel, installed and trained under both TensorFlows
	@tools/wheel_smoke.sh dist/*.whl $(VENV) $(VENV_215)

# One for each python3.10 to python3.13 that is found, or:  make wheels PYTHONS="python3.12 /opt/python3.13/bin/python"
PYTHONS ?=
wheels: $(VENV)/.training .venv-wheels/.requirements  ## dist/wheels/*.whl: a manylinux wheel for each Python
	@.venv-wheels/bin/python tools/wheels.py --tensorflow-of $(PY) $(PYTHONS)

.venv-wheels/.requirements: requirements-wheels.txt tools/venv.sh
	@PYTHON=$(PYTHON) tools/venv.sh .venv-wheels requirements-wheels.txt

wheels-smoke: wheels  ## those wheels, each with a TensorFlow of its own: the quick start without a compiler
	@.venv-wheels/bin/python tools/wheels.py --smoke $(PYTHONS)

# --- documentation ---

.venv-docs/.requirements: requirements-docs.txt tools/venv.sh
	@PYTHON=$(PYTHON) tools/venv.sh .venv-docs requirements-docs.txt

docs: .venv-docs/.requirements  ## the documentation's site, in build/site; warnings are errors
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict

# --- style ---

lint: lint-python  ## ruff, mypy, clang-format
	@$(PY) -m mypy
	@$(VENV)/bin/clang-format --dry-run --Werror $(CXX_FILES)

lint-python: $(VENV)/.requirements  ## ruff alone
	@$(PY) -m ruff check -q . && $(PY) -m ruff format -q --check .

format: $(VENV)/.requirements  ## rewrites the sources in the project's style
	@$(PY) -m ruff check -q --fix . ; $(PY) -m ruff format -q . && $(VENV)/bin/clang-format -i $(CXX_FILES)

clean:  ## removes what was built; the virtual environments and Horovod's wheels stay
	@rm -rf build/native build/lib* build/bdist* build/smoke dist *.egg-info bazel-* && find tf_sparse_ps -name '*.so' -delete
