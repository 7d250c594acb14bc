# `make demo` and `make test` need nothing but Python 3.10+ with venv; a C++ compiler makes the operators fast.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# More test processes than cores, because many tests wait for processes that they have started.
PYTEST := $(BIN)/python -m pytest -n $(shell $(PYTHON) -c "import os; print(os.cpu_count() * 3 // 2)") --dist worksteal

KERNEL := $(wildcard src/stackattn/ops/cpp/kernel/*)

.PHONY: demo test test-fast ci-full docs triton sanitize drills lint format bench clean
demo: $(VENV)/installed-plot
	$(BIN)/stackattn demo

test: $(VENV)/installed-dev
	$(PYTEST) -m "not full"

test-fast: $(VENV)/installed-dev
	$(PYTEST) -m "not slow"

# Runs `.ci/run` and the longer checks, which take hours. Needs SLURM (apt install slurm-wlm munge).
ci-full: $(VENV)/installed-dev
	.ci/run
	$(PYTEST) -m full
	$(MAKE) triton ARGS="3.7.0 3.9.0"
	$(MAKE) sanitize
	$(MAKE) drills
	$(BIN)/python tests/slurm/run.py

# Builds the documentation site, and executes the tutorial for it. Needs Python 3.11 or later.
docs: $(VENV)/installed-dev $(VENV)/installed-docs-requirements
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -c docs -d build/site-cache . build/site
	@echo "the site is build/site/index.html"

# Tests the Triton kernels without a GPU. ARGS: --full to run all tests, then versions of Triton.
triton: $(VENV)/installed-dev
	tests/triton_backend/run.sh $(ARGS)

# Runs the operator tests with a kernel that checks every memory access; ARGS are passed to pytest.
sanitize: $(VENV)/installed-dev
	tests/sanitizers.sh $(ARGS)

# Tests the promises of docs/reliability.md with random faults and inputs: all drills in full, which takes hours.
drills: $(VENV)/installed-dev
	$(BIN)/python -m drills $(ARGS)
	tests/sanitizers.sh --drill

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/clang-format --dry-run -Werror $(KERNEL)
	$(call page,lint)

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(KERNEL)
	$(call page,format)

# Runs Biome on the JavaScript of the HTML report and the playground. Only developers need npm.
page = @if command -v npm >/dev/null; then \
	  npm install --silent --no-audit --no-fund --no-package-lock && npm run --silent $(1); \
	else echo "npm is not installed: the JavaScript of the report and the playground is skipped"; fi

bench: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks $(ARGS)

$(VENV)/installed-docs-requirements: docs/requirements.txt | $(VENV)/installed-dev
	$(BIN)/python -m pip install -r $<
	touch $@

clean:
	rm -rf $(VENV) build out

# An editable install with an extra (plot, dev); repeated when the build files or the kernel change.
$(VENV)/installed-%: pyproject.toml constraints.txt CMakeLists.txt $(KERNEL)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -e ".[$*]"
	touch $@
