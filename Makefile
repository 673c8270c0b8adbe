# `make demo` and `make test` need nothing installed by hand but Python 3.11, make and a network.

ARGS ?=
TEST_ARGS ?=
# Most tests wait for others more than they compute; more than eight only wait for each other.
TEST_PROCESSES ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 4 ? cores * 2 : 8)))
FUZZ_SECONDS ?= 120
PACKAGES ?= dist
CONTROL_PROTOCOLS := federation document tunnel delegation stamps commands status
NATIVE_TESTS := bridges broker faults federation hot interop log mobility mqtt multicast node security sensors
BENCHES ?= devices broker bridge dashboard federation monitoring multicast pipeline sensors

BIN := .venv/bin
# What people use, and beside it what those need who test, measure and change it.
INSTALLED := .venv/.installed
EXTRAS := dash,spark
TOOLS := .venv/.tools
TOOL_EXTRAS := lake,connect,test,dev,jwt
PIP_INSTALL = $(BIN)/python tools/install_packages.py -c constraints.txt
PYTEST = $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal -r fEs --durations=10

# Programs that tools/install-strangers fetched; a plain user's PATH lacks the sbin folders.
export PATH := $(CURDIR)/.cache/strangers/bin:$(PATH):/usr/local/sbin:/usr/sbin
export NODE_PATH := $(CURDIR)/.cache/node/node_modules
# Where this is set, each of the hundreds of programs that a test run starts compiles Hedgerow anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install native plain up demo test check check-native lint format bench fuzz soak packages constraints reference clean
.NOTPARALLEL:

install: $(INSTALLED)

$(INSTALLED): pyproject.toml workshop/pyproject.toml constraints.txt
	@[ -x $(BIN)/pip ] || tools/create-venv
	@echo "installing Hedgerow into .venv, which takes a minute or more: Spark is the largest part, 400 MB"
	@$(PIP_INSTALL) -e '.[$(EXTRAS)]' -e ./workshop
	@touch $@

$(TOOLS): $(INSTALLED)
	@echo "installing what its tests need into .venv"
	@$(PIP_INSTALL) -e '.[$(EXTRAS),$(TOOL_EXTRAS)]' -e './workshop[bench]'
	@touch $@

# The modules that a broker spends its time in, compiled: it needs a C compiler. `make plain` takes it away again.
native: $(TOOLS)
	@echo "compiling, which takes a minute or two"
	@mkdir -p .cache
	@$(BIN)/python tools/build_native.py >.cache/native.log 2>&1 || { cat .cache/native.log; exit 1; }
	@$(BIN)/python -c "import hedgerow; print('hedgerow runs as', hedgerow.native.STATE)"

plain:
	@rm -rf src/hedgerow/_native

up: install
	@$(BIN)/hedgerow up $(ARGS)

demo: install
	@$(BIN)/hedgerow demo $(ARGS)

test: $(TOOLS)
	@tools/install-strangers test
	@$(PYTEST) $(TEST_ARGS)

check: lint test

# What was compiled does what plain Python does.
check-native: native
	@tools/install-strangers test
	@HEDGEROW_NATIVE=1 $(PYTEST) $(addprefix tests/,$(NATIVE_TESTS)) $(TEST_ARGS)

lint: $(TOOLS)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: $(TOOLS)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(TOOLS)
	@tools/install-strangers bench
	@for name in $(BENCHES); do $(BIN)/hedgerow bench $$name $(ARGS) || exit 1; done

# An input that takes 10 s or 1 GiB is a fault as well. What fuzzing learned is kept in .cache/fuzz, so that the
# next run begins where this one ended.
fuzz: $(TOOLS)
	@$(PIP_INSTALL) -e '.[fuzz]'
	@for target in codec session frame sensors $(addprefix control-,$(CONTROL_PROTOCOLS)); do \
	  mkdir -p .cache/fuzz/$$target && \
	  $(BIN)/python tests/fuzz/fuzz_$${target%%-*}.py $$(echo $$target | sed 's/^[^-]*-*//') \
	    -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=1024 \
	    -artifact_prefix=.cache/fuzz/ .cache/fuzz/$$target || exit 1; \
	done

soak: $(TOOLS)
	@tools/install-strangers test
	@$(PIP_INSTALL) -e '.[packages]'
	@$(BIN)/python -m pytest -m soak --timeout=3600 -r fEs $(TEST_ARGS)
	@$(PYTEST) -m "hypothesis and not soak" --timeout=600 --hypothesis-profile="new examples" $(TEST_ARGS)

# The wheel, the archive of the source and, on Debian, its package.
packages: $(TOOLS)
	@$(PIP_INSTALL) -e '.[packages]'
	@mkdir -p $(PACKAGES)
	@$(BIN)/python -m build --quiet --outdir $(PACKAGES)
	@$(BIN)/twine check --strict $(PACKAGES)/*.whl $(PACKAGES)/*.tar.gz
	@[ ! -x /usr/bin/dpkg-deb ] || deploy/debian/build-deb $(PACKAGES)

# The newest versions that fit together become the pinned ones.
constraints:
	@rm -rf .cache/constraints && python3 -m venv .cache/constraints
	@.cache/constraints/bin/pip install -qq --disable-pip-version-check -e '.[$(EXTRAS),$(TOOL_EXTRAS),fuzz,packages]' -e './workshop[bench]'
	@echo "# The versions that the tests ran with; \`make constraints\` renews them." >constraints.txt
	@.cache/constraints/bin/pip freeze --exclude-editable >>constraints.txt
	@rm -rf .cache/constraints

# docs/reference, from the code.
reference: install
	@$(BIN)/python tools/make_reference.py

clean: plain
	rm -rf .venv .cache dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src workshop tests -name __pycache__ -type d -prune -exec rm -rf {} +
