# `make demo` and `make test` need nothing installed by hand but Python 3.11, make and a network.

ARGS ?=
TEST_ARGS ?=
# More than eight live brokers at once only wait for each other.
TEST_PROCESSES ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 8 ? cores : 8)))
FUZZ_SECONDS ?= 120
BENCHES ?= broker bridge federation monitoring multicast pipeline sensors

BIN := .venv/bin
INSTALLED := .venv/.installed
EXTRAS := bench,lab,spark,lake,test,dev
PYTEST = $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal -r fEs --durations=10

# Programs that tools/install-strangers fetched; a plain user's PATH lacks the sbin folders.
export PATH := $(CURDIR)/.cache/strangers/bin:$(PATH):/usr/local/sbin:/usr/sbin
export NODE_PATH := $(CURDIR)/.cache/node/node_modules

.PHONY: install demo test check lint format bench fuzz soak constraints clean
.NOTPARALLEL:

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@[ -x $(BIN)/pip ] || tools/create-venv
	@echo "installing Hedgerow and what its tests need into .venv"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: install
	@$(BIN)/hedgerow demo $(ARGS)

test: install
	@tools/install-strangers test
	@$(PYTEST) $(TEST_ARGS)

check: lint test

lint: install
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: install
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: install
	@tools/install-strangers bench
	@for name in $(BENCHES); do $(BIN)/hedgerow bench $$name $(ARGS) || exit 1; done

# What fuzzing learned is kept in .cache/fuzz, so that the next run begins where this one ended.
fuzz: install
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	@for target in codec session frame sensors; do \
	  mkdir -p .cache/fuzz/$$target && \
	  $(BIN)/python tests/fuzz/fuzz_$$target.py -max_total_time=$(FUZZ_SECONDS) \
	    -artifact_prefix=.cache/fuzz/ .cache/fuzz/$$target || exit 1; \
	done

soak: install
	@tools/install-strangers test
	@$(BIN)/python -m pytest -m soak --timeout=3600 -r fEs $(TEST_ARGS)

# The newest versions that fit together become the pinned ones.
constraints:
	@rm -rf .cache/constraints && python3 -m venv .cache/constraints
	@.cache/constraints/bin/pip install -qq --disable-pip-version-check -e '.[$(EXTRAS),fuzz]'
	@echo "# The versions that the tests ran with; \`make constraints\` renews them." >constraints.txt
	@.cache/constraints/bin/pip freeze --exclude-editable >>constraints.txt
	@rm -rf .cache/constraints

clean:
	rm -rf .venv .cache dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
