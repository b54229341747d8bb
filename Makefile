# Two commands for a newcomer: `make demo` and `make test`. Each sets up its own .venv; the second call is fast.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint types bench docs clean

demo: $(VENV)/.product
	$(VENV)/bin/trimtab demo

test: $(VENV)/.developer lint types
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist worksteal -rs --durations 5 --durations-min 20 $(ARGS)

lint: $(VENV)/.developer
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.developer
	$(VENV)/bin/mypy

$(VENV)/.product: pyproject.toml constraints.txt
	@echo "Setting up $(VENV): a minute or two, the first time only"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@$(PIP) -e .
	@touch $@

# These packages come without their dependencies: there is no CPU wheel of torchvision
# to resolve against, and they are only compared with in the tests.
$(VENV)/.developer: $(VENV)/.product requirements-dev.txt requirements-nodeps.txt
	@echo "Adding what the tests need to $(VENV)"
	@$(PIP) -r requirements-dev.txt
	@$(PIP) --no-deps -r requirements-nodeps.txt
	@touch $@

docs: $(VENV)/.product
	$(PIP) -r requirements-docs.txt
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis dist site
