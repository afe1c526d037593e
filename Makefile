# The commands of this repository. `make help` lists them; CMakePresets.json has the builds.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

JOBS ?= $(shell nproc)
WERROR ?= OFF
FUZZ_SECONDS ?= 60
ARGS ?=
export JOBS WERROR

# $(call build,<preset>[,<ninja targets>])
define build
	scripts/build.sh $(1) $(if $(2),--target $(2))
endef

.PHONY: help
help: ## this text
	@echo "hawser $$(cat VERSION): remote calls for PyTorch tensors"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "What is missing is installed at the first run (Debian, Ubuntu; needs root or sudo)."
	@echo "Variables: JOBS=$(JOBS) WERROR=$(WERROR) FUZZ_SECONDS=$(FUZZ_SECONDS) ARGS='<passed on to ctest, demo or bench>'"

.PHONY: demo
demo: bootstrap ## trains a model that is split over three processes
	$(call build,dev,hawser_native)
	PYTHONPATH=build/dev/python .venv/bin/python examples/python/train.py --trace build/demo.json $(ARGS)

.PHONY: demo-calls
demo-calls: bootstrap ## three processes call each other over shm and tcp, and one is killed
	$(call build,dev,example_demo)
	build/dev/examples/demo $(ARGS)

.PHONY: test
test: bootstrap ## everything: all tests, then the torch-free layers under both sanitizers
	scripts/test_all.sh $(ARGS)

.PHONY: check
check: bootstrap ## build dev and run all its tests
	scripts/run_tests.sh dev $(ARGS)

.PHONY: asan
asan: bootstrap ## torch-free layers under AddressSanitizer and UBSan
	scripts/run_tests.sh asan $(ARGS)

.PHONY: tsan
tsan: bootstrap ## torch-free layers under ThreadSanitizer (the simulator has one thread, and is left out)
	scripts/run_tests.sh tsan --label-exclude sim $(ARGS)

.PHONY: conformance
conformance: build ## all of torch's own suites (ARGS="--times 2": twice in a row)
	PYTHONPATH=build/dev/python .venv/bin/python tests/conformance/check.py $(ARGS)

.PHONY: fuzz
fuzz: bootstrap-fuzz ## every fuzz target for FUZZ_SECONDS
	$(call build,fuzz)
	scripts/fuzz.sh $(FUZZ_SECONDS)

.PHONY: bench
bench: release ## hawser against the limits of this machine, and against torch's own RPC
	scripts/bench.sh $(ARGS)

.PHONY: build
build: bootstrap ## build dev
	$(call build,dev)

.PHONY: release
release: bootstrap ## build release
	$(call build,release)

.PHONY: lint
lint: bootstrap ## formatting, Python and shell checks, include rules
	scripts/lint.sh

.PHONY: format
format: bootstrap ## format C++ and Python in place
	scripts/lint.sh --fix

.PHONY: bootstrap bootstrap-fuzz
bootstrap: ## install what is missing
	@scripts/bootstrap.sh
bootstrap-fuzz:
	@scripts/bootstrap.sh --fuzz

.PHONY: clean distclean
clean: ## remove build/
	rm -rf build
distclean: clean ## remove build/ and .venv
	rm -rf .venv
