# Two commands to start with: `make demo` and `make test`. They need Python 3.11 or newer and a package index.
# Paths are relative, so a clone under a folder with spaces works too.

.PHONY: help demo test docs render notebooks browser chaos numerics fuzz stress audit sbom lock
PY := .venv/bin/python
INSTALLED := .venv/.installed
TORCH := $(shell sed -n '/^torch==/p' requirements.lock)
CANDIDATES := $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python3.14)
# A package index with CPU builds of torch; empty: the default index.
TORCH_INDEX :=
SUITABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

# A launcher may exist but not run (version managers leave such files), so each candidate is started.
FIND_PYTHON = for python in $(CANDIDATES); do \
	if "$$python" -c '$(SUITABLE)' >/dev/null 2>&1; then echo "$$python"; exit 0; fi; done; \
	echo "No usable Python: got none of ($(CANDIDATES)); expected Python 3.11 or newer with the venv module." >&2; \
	echo "Install it (Debian: python3.11 and python3.11-venv), or give its path: make test PYTHON=/path/to/python3.12" >&2; exit 1

help: ## list the targets
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/make \1	\2/p' Makefile

demo: $(INSTALLED) ## attack and purify bundled digits, print a table, write an HTML page (under a minute)
	@.venv/bin/soap demo

test: $(INSTALLED) ## ruff, mypy --strict, pytest with warnings as errors
	$(PY) -m ruff check
	$(PY) -m mypy
	OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

docs: $(INSTALLED) ## the documentation as a site, in site/index.html
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

render: $(INSTALLED) ## render the numbers in docs/ and README.md from the committed result rows, and the data's metadata
	$(PY) tools/render_pages.py
	$(PY) tools/write_croissant.py

notebooks: $(INSTALLED) ## run the notebooks in docs/notebooks and store their outputs
	OMP_NUM_THREADS=1 $(PY) tools/run_notebooks.py

browser: $(INSTALLED) ## fetch onnxruntime-web with npm (21 MB), so that the page can run networks in the browser
	OMP_NUM_THREADS=1 $(PY) tools/vendor_onnxruntime.py

chaos: $(INSTALLED) ## the long version of tests/chaos; its counts go to results/reliability.jsonl
	SOAP_LONG=1 OMP_NUM_THREADS=1 $(PY) -m pytest tests/chaos

numerics: $(INSTALLED) ## compare threads, batch sizes and memory layouts; its counts go to results/reliability.jsonl
	SOAP_LONG=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(PY) -m pytest --noconftest tests/test_numerical_reliability.py

fuzz: $(INSTALLED) ## five minutes of fuzzing for each file format; its counts go to results/reliability.jsonl
	SOAP_LONG=1 OMP_NUM_THREADS=1 $(PY) -m pytest tests/fuzz/test_fuzz.py

stress: $(INSTALLED) ## the long version of tests/stress and of the API fuzz, 4 hours; its counts go to results/reliability.jsonl
	SOAP_LONG=1 OMP_NUM_THREADS=1 $(PY) -m pytest tests/stress tests/serve/test_serve_fuzz.py

# Without --strict, pip-audit reports "no known vulnerabilities" for packages that its feed does not have.
audit: $(INSTALLED) ## look up every pinned package with pip-audit; fails if one is vulnerable or could not be checked
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && $(PY) -m venv "$$folder" && \
	"$$folder/bin/python" -m pip install --quiet --disable-pip-version-check pip-audit && \
	"$$folder/bin/python" -m pip_audit --strict --no-deps --disable-pip --requirement requirements.lock

sbom: ## list the pinned packages as a CycloneDX file, dist/sbom.cdx.json, with cyclonedx-bom
	@python=$$($(FIND_PYTHON)) && folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && mkdir -p dist && \
	"$$python" -m venv "$$folder" && \
	"$$folder/bin/python" -m pip install --disable-pip-version-check --quiet cyclonedx-bom==7.5.0 && \
	"$$folder/bin/cyclonedx-py" requirements --pyproject pyproject.toml --mc-type library --output-reproducible \
		--output-file dist/sbom.cdx.json requirements.lock && \
	echo "dist/sbom.cdx.json: $$(grep -c '"purl"' dist/sbom.cdx.json) packages"

# torch is installed first and alone: with an open range pip may choose another torch with gigabytes of CUDA packages.
# Then --no-deps installs only what the lock lists, and `pip check` verifies that the lock is complete.
$(INSTALLED): requirements.lock pyproject.toml
	@$(PY) -c 'import pip; $(SUITABLE)' >/dev/null 2>&1 || { \
		python=$$($(FIND_PYTHON)) && echo "Making .venv with $$python" && "$$python" -m venv --clear .venv; }
	@echo "Installing the pinned packages into .venv (once; a few minutes on a slow connection)"
	@$(PY) -m pip install --disable-pip-version-check -c requirements.lock $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "$(TORCH)"
	@$(PY) -m pip install --disable-pip-version-check --quiet --no-deps -r requirements.lock
	@$(PY) -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@$(PY) -m pip check
	@touch $@

# The lock omits the CUDA packages of a GPU build of torch: torch pins them itself.
lock: ## resolve requirements.lock again from pyproject.toml, with the same torch
	@python=$$($(FIND_PYTHON)) && folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	"$$python" -m venv "$$folder" && \
	"$$folder/bin/python" -m pip install --quiet "$(TORCH)" && \
	"$$folder/bin/python" -m pip install --quiet '.[dev]' && \
	"$$folder/bin/python" -m pip check && \
	"$$folder/bin/python" -m pip freeze --all --exclude pip --exclude soap-defense > "$$folder/frozen" && \
	{ echo "# Every package of the development environment, pinned; written by \`make lock\` from pyproject.toml."; \
	  sed 's/+[A-Za-z0-9.]*$$//' "$$folder/frozen" | grep -Ev '^(nvidia|cuda|triton(==|-rocm))'; } > "$$folder/lock" && \
	cp "$$folder/lock" requirements.lock && echo "requirements.lock: $$(grep -c == requirements.lock) packages"
