export PATH := $(PATH):$(HOME)/.cargo/bin
export PORT ?= 6379
export PAGE_PORT ?= 8000
install := scripts/install-tools.sh
with_server := REDIS_SERVER="$$(scripts/find-server.sh)"
lint_tools := cargo rustfmt clippy cc c++ libclang shellcheck

# What `build` installs first. If it runs for a target that adds something, it installs that too.
needs := cargo cc libclang
test test-servers test-metrics bench prove soak mutants: needs += redis-server
test test-clients: needs += openssl
test-clients bench-adapters bench-litellm: needs += redis-server python3-venv
test-clients bench-adapters: needs += node npm
test-clients: needs += chromium
bench: needs += valgrind
prove: needs += python3-venv
mutants: needs += python3

.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*##.*/\1/p' $(MAKEFILE_LIST))

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-15s%s\n", $$1, $$2}' Makefile

build: ## Build target/release/libredis_ratelimit.so
	@$(install) $(needs)
	cargo build --release

run: ## Build, then serve the module on 127.0.0.1 until Ctrl-C (PORT=6379)
	@scripts/run.sh

playground: ## Serve docs/playground, a page that shows what a limit admits, on 127.0.0.1 until Ctrl-C (PAGE_PORT=8000)
	@$(install) cargo python3
	@scripts/build-engine.sh typescript
	@install -m 644 clients/typescript/wasm/engine.wasm docs/playground/
	@echo "http://127.0.0.1:$(PAGE_PORT)/playground/"
	@python3 -m http.server $(PAGE_PORT) --bind 127.0.0.1 --directory docs

test: build ## Build, then run the tests against a real server; ends with a list of what was skipped
	@$(with_server) scripts/test.sh --workspace

test-servers: build ## Build, then run the server tests on Redis 6.2 to 8.6 and Valkey 8, 9 (SERVERS="redis-7.0 valkey-9.1")
	scripts/test-servers.sh $(SERVERS)

test-clients: build ## Run the tests of all clients and examples, with every version of their libraries; needs pip and npm
	@$(with_server) scripts/test-clients.sh

test-oldest: ## Run the client tests that need no server on Python 3.10 and Node 18; needs pip and npm
	@$(install) cargo python3-venv node npm
	scripts/test-oldest.sh

test-metrics: build ## Check the alerts and queries of examples/metrics with redis_exporter, Prometheus and servers that fail
	$(with_server) scripts/test-metrics.sh

package: ## Build a release reproducibly in target/package/dist: .tar.gz, .deb, Dockerfile, SBOM (TARGETS="amd64 arm64")
	scripts/package.sh $(TARGETS)

python-wheels: ## Build the Python client in target/package/python, and try those that run here (WHEELS="sdist amd64 arm64")
	@$(install) cargo cc python3-venv
	scripts/package-python.sh $(or $(WHEELS),sdist amd64 arm64)

test-packages: ## Install the packages and images on clean systems, and build them a second time; needs root (CASES=)
	scripts/test-packages.sh $(CASES)

tools: ## Install what make lint needs
	@$(install) $(lint_tools)
	@scripts/install-clients.sh --if-possible

lint: ## Check format, lints, types, doc comments, layers, scripts and new commits, before each commit
	@$(install) --look $(lint_tools) || { echo "To install what make lint needs: make tools" >&2; exit 1; }
	@scripts/lint.sh

check: ## Run what CI runs on each push: lints, tests, the package, tests on Redis 7.0 and Valkey 9.1 (STRICT=1: skip nothing)
	@scripts/check.sh

bench: build ## Measure the commands and their peers, and write docs/benchmarks.md (BENCH="section ... --quick": only a part)
	$(with_server) cargo bench --bench decisions -- $(BENCH)
	$(if $(BENCH),,$(with_server) cargo bench --package redis-ratelimit-client)

bench-adapters: build ## Compare adapters with the stores they replace; writes docs/python.md, clients/typescript/ADAPTERS.md
	@$(with_server) scripts/bench-python.sh limits
	$(with_server) scripts/bench-adapters.sh --write clients/typescript/ADAPTERS.md

bench-litellm: build ## Compare LiteLLM's own limiter with ours while servers die, and write docs/litellm.md (RUNS=10 SEED=1)
	@$(with_server) scripts/bench-python.sh litellm

reference: ## Write the references of the Python and TypeScript clients to target/clients/reference
	@scripts/install-clients.sh --if-possible
	scripts/lint-python.sh --reference
	scripts/lint-typescript.sh --reference

pictures: ## Draw the pictures in README.md, choosing.md and commands.md, and write the tables in docs/operations.md
	@$(install) $(needs)
	cargo bench --profile dev --bench pictures

fuzz: ## Fuzz the parsers and limits with libFuzzer, each for T seconds (T=60)
	@T=$${T:-60} scripts/fuzz.sh

valgrind: ## Run the core of the server tests under valgrind, and fail on invalid accesses and leaks of the module
	@scripts/valgrind.sh

mutants: ## Break the engine and the commands in small ways, and fail if tests notice fewer than 95 % (SHARD=0/4)
	@$(install) $(needs)
	scripts/mutants.sh $(if $(SHARD),--shard $(SHARD) --sharding round-robin)

minimum-rust: ## Build with the oldest Rust that Cargo.toml allows
	scripts/check-minimum-rust.sh

advisories: ## Look for known vulnerabilities in the dependencies; needs a network
	@$(install) cargo cargo-deny
	cargo deny --locked check advisories

soak: build ## Run faults, failovers and low memory at once for T seconds, and check all limits (T=600 SEED=1)
	@$(with_server) scripts/soak.sh

prove: ## Search small worlds, prove lemmas, judge histories (PARTS="lemmas worlds histories" HISTORIES=10 SEED=1)
	@$(install) $(needs)
	$(with_server) scripts/prove.sh $(PARTS)

clean: ## Remove what was built; what npm and pip installed in clients/ and what fuzzing found in fuzz/ stay
	cargo clean
	cargo clean --manifest-path fuzz/Cargo.toml
	rm -rf clients/*/dist clients/*/build clients/python/native/target
	rm -f clients/typescript/wasm/engine.wasm clients/python/src/redis_ratelimit/_engine*.so
