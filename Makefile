# Every target sets itself up: scripts/setup.sh fills .venv once, and again only when a file it depends on changes.
# Choose an interpreter with  make test PYTHON=/path/to/python3.12

.DEFAULT_GOAL := help
.PHONY: help demo test check prove bench docs dist sbom fmt clean

BIN := .venv/bin
BASE := .venv/.ready-base
DEV := .venv/.ready-dev
BENCH := .venv/.ready-bench

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 14

demo: $(BASE) ## see it: a producer and the server are killed, nothing is lost
	@$(BIN)/holdfast demo

test: check ## everything a change must pass: check, then the quick tests
	@$(BIN)/python -m pytest -q -m "not long" --ignore=tests/tidy --ignore=tests/spark --numprocesses=auto --maxprocesses=4 --dist=worksteal
	@$(BIN)/python -m pytest -q -m "not long" tests/spark

check: $(DEV) ## format, lint, types, layers, and docs against code
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python -m pytest -q tests/tidy

prove: check ## the long proof: all tests, many more examples and crash points
	@HOLDFAST_PROFILE=prove $(BIN)/python -m pytest --timeout=3600

bench: $(BENCH) ## measure, with this machine's limits and the peers beside each figure, and keep it in the history
	@$(BIN)/python -m bench --keep

docs: $(DEV) ## build the documentation site into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: $(DEV) sbom ## build wheel, source distribution and bill of materials into dist
	@$(BIN)/uv build --offline --no-build-isolation --quiet --out-dir dist
	@ls -l dist

SBOM := dist/holdfast.cdx.json
sbom: $(DEV) ## write what the package with all its extras is made of (CycloneDX)
	@mkdir -p $(dir $(SBOM))
	@$(BIN)/uv export --quiet --frozen --offline --no-dev --all-extras --format cyclonedx1.5 --preview-features sbom-export --output-file $(SBOM)

fmt: $(DEV) ## format the code and mend what lint can mend
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

clean: ## remove .venv and everything that was generated
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(BASE) $(DEV) $(BENCH): pyproject.toml uv.lock scripts/setup.sh
	@PYTHON="$(PYTHON)" sh scripts/setup.sh $(@:.venv/.ready-%=%)
