export PATH := $(PATH):$(HOME)/.cargo/bin
export PORT ?= 6379
install := scripts/install-tools.sh
with_server := REDIS_SERVER="$$(scripts/find-server.sh)"
clients := $(or $(CARGO_TARGET_DIR),target)/clients
rust_clients := tests/clients/rust/Cargo.toml examples/rust/Cargo.toml
export PAGE_PORT ?= 8000
shell_scripts := $(wildcard scripts/*.sh packaging/tests/*.sh) .ci/run

.PHONY: help build run playground test test-servers test-clients test-oldest test-metrics package python-wheels test-packages lint check fuzz valgrind mutants minimum-rust advisories soak prove bench \
	bench-adapters bench-litellm reference pictures clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-15s%s\n", $$1, $$2}' Makefile

build: ## Build target/release/libredis_ratelimit.so
	@$(install) cargo cc libclang
	cargo build --release

run: ## Build, then serve the module on 127.0.0.1 until Ctrl-C (PORT=6379)
	@scripts/run.sh

playground: ## Serve docs/playground, a page that shows what a limit admits, on 127.0.0.1 until Ctrl-C (PAGE_PORT=8000)
	@$(install) cargo python3
	@scripts/build-engine.sh typescript
	@echo "http://127.0.0.1:$(PAGE_PORT)/playground/"
	@python3 -m http.server $(PAGE_PORT) --bind 127.0.0.1 --directory docs

test: ## Build, then run the tests against a real server; ends with a list of what was skipped
	@$(install) cargo cc libclang redis-server
	cargo build --release
	@$(with_server) scripts/test.sh --workspace

test-servers: ## Build, then run the server tests on Redis 6.2 to 8.6 and Valkey 8, 9 (SERVERS="redis-7.0 valkey-9.1")
	@$(install) cargo cc libclang redis-server
	cargo build --release
	scripts/test-servers.sh $(SERVERS)

test-clients: ## Run the tests of all clients and examples, with every version of their libraries; needs pip and npm
	@$(install) cargo cc libclang redis-server python3-venv node npm chromium
	@scripts/install-clients.sh --versions
	cargo build --release
	for manifest in $(rust_clients); do \
		cargo clippy --locked --all-targets --manifest-path $$manifest --target-dir $(clients)/cargo -- -D warnings || exit 1; done
	$(with_server) CLIENTS=all RATELIMIT_CALLS=$${RATELIMIT_CALLS:-30000} cargo test --test programs
	$(with_server) CLIENTS=all cargo test --locked --package redis-ratelimit-client --all-features

test-oldest: ## Run the client tests that need no server on the oldest supported Python (3.10) and Node (18); needs pip and npm
	@$(install) cargo python3-venv node npm
	scripts/test-oldest.sh

test-metrics: ## Scrape a server with redis_exporter and Prometheus, and check that every query in examples/metrics/ returns a series
	@$(install) cargo cc libclang redis-server
	cargo build --release
	$(with_server) scripts/test-metrics.sh

package: ## Build a release in target/package/dist, reproducibly: .tar.gz, .deb, Dockerfile, SBOM, checksums (TARGETS="amd64 arm64")
	scripts/package.sh $(TARGETS)

python-wheels: ## Build the Python client in target/package/python, and try those that run here (WHEELS="sdist amd64 arm64")
	@$(install) cargo cc python3-venv
	scripts/package-python.sh $(or $(WHEELS),sdist amd64 arm64)

test-packages: ## Install the packages and images on clean systems, for amd64 and arm64, and build them a second time; needs root
	scripts/test-packages.sh $(CASES)

lint: ## Check format, lints, types, doc comments, layers, shell scripts and subjects of commits: run it before each commit
	@$(install) cargo rustfmt clippy cc c++ libclang shellcheck
	@scripts/install-clients.sh --if-possible
	scripts/check-commits.sh
	cargo fmt --all --check
	cargo fmt --check --manifest-path fuzz/Cargo.toml
	for manifest in $(rust_clients); do cargo fmt --check --manifest-path $$manifest || exit 1; done
	cargo fmt --check --manifest-path clients/python/native/Cargo.toml
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --package redis-ratelimit-client --no-default-features -- -D warnings
	cargo clippy --locked --package redis-ratelimit-client --all-features --all-targets -- -D warnings
	cargo clippy --locked --manifest-path fuzz/Cargo.toml -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --workspace --document-private-items
	scripts/check-layers.sh
	for script in $(shell_scripts); do bash -n $$script || exit 1; done
	shellcheck $(shell_scripts)
	scripts/check-python.sh --if-possible
	scripts/lint-typescript.sh --if-possible

check: export SKIPPED := $(abspath $(or $(CARGO_TARGET_DIR),target))/skipped
check: ## Run what CI runs: make lint, dependencies, tests, the package, and the server tests on Redis 7.0 and Valkey 9.1 (STRICT=1: skip nothing)
	@mkdir -p $(dir $(SKIPPED)) && : >$(SKIPPED)
	$(MAKE) lint
	@$(install) cargo cargo-deny cc libclang python3 redis-server
	scripts/check-crates.sh
	cargo deny --locked check bans licenses sources
	@if timeout 120 cargo deny --locked fetch db >/dev/null 2>&1; then cargo deny --locked check advisories; \
		else scripts/skip.sh advisories "their database could not be fetched: make advisories"; fi
	$(MAKE) test
	$(with_server) scripts/test-metrics.sh --if-possible
	scripts/test-package.sh --if-possible
	FLOOD=$${FLOOD:-5} scripts/test-servers.sh --if-possible $$("$$(scripts/find-server.sh)" --version | grep -q 'Redis server v=7[.]0[.]' || echo redis-7.0) valkey-9.1
	@scripts/skip.sh --list

bench: ## Measure, and write docs/benchmarks.md and its charts (BENCH="section ... --quick": only a part, to target/bench)
	@$(install) cargo cc libclang redis-server valgrind
	cargo build --release
	$(with_server) cargo bench --bench decisions -- $(BENCH)
	$(if $(BENCH),,$(with_server) cargo bench --package redis-ratelimit-client)

bench-adapters: ## Compare the adapters with the stores they replace, and write docs/python.md and clients/typescript/ADAPTERS.md
	@$(install) cargo cc libclang redis-server python3-venv node npm
	@scripts/install-clients.sh
	cargo build --release
	RATELIMIT_SERVER="$$(scripts/find-server.sh)" RATELIMIT_MODULE="$(abspath $(or $(CARGO_TARGET_DIR),target))/release/libredis_ratelimit.so" \
		PYTHONPATH=clients/python/src:clients/python PYTHONDONTWRITEBYTECODE=1 \
		$(clients)/python/bin/python -m tests.measure_limits docs/python.md
	$(with_server) scripts/bench-adapters.sh --write clients/typescript/ADAPTERS.md

bench-litellm: ## Compare LiteLLM's own limiter with ours in RUNS runs with random kills, write docs/litellm.md, and fail if ours overspends or leaks (RUNS=10 SEED=1)
	@$(install) cargo cc libclang redis-server python3-venv
	@scripts/install-clients.sh --versions
	cargo build --release
	RATELIMIT_SERVER="$$(scripts/find-server.sh)" RATELIMIT_MODULE="$(abspath $(or $(CARGO_TARGET_DIR),target))/release/libredis_ratelimit.so" \
		PYTHONPATH=clients/python/src:clients/python PYTHONDONTWRITEBYTECODE=1 RUNS=$${RUNS:-10} SEED=$${SEED:-1} \
		$(clients)/litellm/bin/python -m tests.measure_litellm docs/litellm.md

reference: ## Write the references of the clients: docs/python-reference.md, and target/clients/reference for TypeScript
	@scripts/install-clients.sh --if-possible
	$(clients)/python/bin/python scripts/python-reference.py
	scripts/lint-typescript.sh --reference

pictures: ## Draw the pictures in docs/choosing.md, and write its tables and those in docs/operations.md
	@$(install) cargo cc libclang redis-server
	cargo build --release
	$(with_server) cargo bench --bench pictures

fuzz: ## Fuzz every parser and algorithm with libFuzzer, each for T seconds (T=60)
	@T=$${T:-60} scripts/fuzz.sh

valgrind: ## Run the core of the server tests under valgrind, and fail on invalid accesses and leaks of the module
	@scripts/valgrind.sh

mutants: ## Run cargo-mutants on the engine and the commands, and fail if the tests catch fewer than 95 % of the mutants (SHARD=0/4: a quarter)
	@$(install) cargo cc python3
	scripts/mutants.sh $(if $(SHARD),--shard $(SHARD) --sharding round-robin)

minimum-rust: ## Build with the oldest Rust that Cargo.toml allows
	scripts/check-minimum-rust.sh

advisories: ## Look for known vulnerabilities in the dependencies; needs a network
	@$(install) cargo cargo-deny
	cargo deny --locked check advisories

soak: ## Run faults, failovers and low memory at once for T seconds, and check that no limit was exceeded; then leases (T=600 SEED=1)
	@$(install) cargo cc libclang redis-server
	cargo build --release
	$(with_server) RATELIMIT_SOAK_SECONDS=$${T:-600} RATELIMIT_SEED=$${SEED:-1} \
		cargo test --test server -- soak:: failovers:: --ignored --nocapture
	@scripts/install-clients.sh --if-possible
	$(with_server) LEASES_SECONDS=$$(($${T:-600} / 2)) PROOF_SEED=$${SEED:-1} \
		cargo test --test programs never_spend -- --nocapture

prove: ## Search small worlds, prove lemmas, check histories of real servers; Kani harnesses if installed (PARTS="lemmas worlds histories kani" HISTORIES=10 SECONDS_EACH=60 SEED=1)
	@$(install) cargo cc libclang redis-server python3-venv
	$(with_server) scripts/prove.sh $(PARTS)

clean: ## Remove everything that was built
	cargo clean
	cargo clean --manifest-path fuzz/Cargo.toml
