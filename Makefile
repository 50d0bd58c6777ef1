# make chat   sets up .venv if needed and opens a chat on the starter model
# make test   sets up .venv with the development tools if needed and runs all tests
# make ci     what CI runs: the tests, then the static checks
#
# PYTHON=...      the interpreter .venv is made with (default: the first Python 3.11+ found)
# CMAKE_ARGS=...  extra flags for llama.cpp, e.g. "-DGGML_CUDA=on"; see docs/install.md
# ARGS=...        passed on: make chat ARGS="--model some.gguf", make test ARGS="-k store"

NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	if $$p $(NEW_ENOUGH); then echo $$p; break; fi; done)
endif
ifeq ($(OS),Windows_NT)
BIN := .venv/Scripts
else
BIN := .venv/bin
endif

.DEFAULT_GOAL := help
.PHONY: help chat test check ci mutants gate batch-kills bench bench-all bench-peer bench-kv bench-remote llama-peers test-llama-server test-vllm pictures texts format clean python env dev-env

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

python:
	@"$(PYTHON)" $(NEW_ENOUGH) || { echo "chatapp needs Python 3.11 or newer: install it, or name it with make PYTHON=/path/to/python" >&2; exit 1; }

env: python
	@"$(PYTHON)" -m tools.bootstrap

dev-env: python
	@"$(PYTHON)" -m tools.bootstrap --dev

chat: env
	@$(BIN)/chatapp $(ARGS)

# In two processes, a file in one of them: more would need a gigabyte of models each. ARGS="-n 0 ..." takes one.
test: dev-env
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

# Damage in the long form, about half an hour: containers, folders through the real model, killed programs.
mutants: dev-env
	@$(BIN)/python -m pytest tests/models/test_kvformat.py tests/models/test_kv_mutants.py tests/models/test_kv_processes.py \
		--timeout 0 --mutants 10000000 --model-mutants 500 --kv-kills 200 $(ARGS)

# All code points through each kind of widget, two minutes; `make test` takes those that matter and a sample.
gate: dev-env
	@$(BIN)/python -m pytest tests/chatapp/test_gate.py tests/chatapp/test_gate_window.py tests/terminal/test_hostile.py \
		--timeout 0 --every-code-point $(ARGS)

# A batch killed 50 times, ten seconds; `make test` does so 6 times.
batch-kills: dev-env
	@$(BIN)/python -m pytest tests/chatapp/test_bulk_kills.py --timeout 0 --batch-kills 50 $(ARGS)

check: dev-env
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

ci: test
	@$(MAKE) --no-print-directory check

bench: env
	@$(BIN)/chatapp bench resume --tokens 4000 --json

# Everything `chatapp bench` measures, an object a line, 15 minutes on an idle machine.
bench-all: env
	@for name in resume decode prefill batch typeahead ui startup; do $(BIN)/chatapp bench $$name --json || exit 1; done

# llama-server and llama-bench of the same llama.cpp with the same flags: compiled once, 10 minutes on 2 cores.
llama-peers: env
	@$(BIN)/python -m tools.llama_peers

# The contract of engines asked of that server instead of the packaged one.
test-llama-server: dev-env
	@peers="$$($(BIN)/python -m tools.llama_peers)" && \
		$(BIN)/python -m pytest tests/contract/test_server_contract.py --llama-server "$$peers/llama-server" $(ARGS)

# The same of vLLM on this machine's processor: downloads 0.6 GB once, 5 minutes, 4 GB on the disk.
# VLLM=URL asks a server that runs (its key in VLLM_KEY), VLLM=FOLDER the vLLM of a virtual environment.
test-vllm: dev-env
	@server="$$($(BIN)/python -m tools.vllm_server $(VLLM))" && \
		$(BIN)/python -m pytest tests/contract/test_vllm_contract.py --vllm "$$server" $(ARGS)

bench-remote: dev-env
	@$(BIN)/python -m benchmarks.remote $(ARGS)

# The product beside both, 13 minutes on an idle machine; writes the table in docs/performance.md.
bench-peer: dev-env
	@peers="$$($(BIN)/python -m tools.llama_peers)" && $(BIN)/python -m benchmarks.report --peers "$$peers" --write $(ARGS)

bench-kv: env
	@$(BIN)/python -m benchmarks.kvstore $(ARGS)

# Brings the texts of other languages up to date, and says what is not translated.
texts: dev-env
	@$(BIN)/python -m tools.texts

pictures: dev-env
	@$(BIN)/python -m tools.pictures

format: dev-env
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

# Compiled wheels stay in the user's cache: see docs/install.md.
clean:
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
