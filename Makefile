# Everything cargo makes lies outside the checkout, so that a fresh clone finds it again. RocksDB is compiled once per
# machine and version and linked from there. There is one profile (release), and programs are built with the whole
# workspace selected: cargo then takes the same features of every dependency for a build, for the tests and for clippy.
CACHE := $(or $(HOLDFAST_CACHE),$(XDG_CACHE_HOME),$(HOME)/.cache)
export CARGO_TARGET_DIR ?= $(CACHE)/holdfast/target
ROCKSDB_VERSION := $(shell awk -F '"' '/^name = "librocksdb-sys"/ { getline; print $$2 }' Cargo.lock)
# The name changes with the way in which tools/rocksdb compiles it.
export ROCKSDB_LIB_DIR ?= $(CACHE)/holdfast/rocksdb-$(ROCKSDB_VERSION)-unity
export ROCKSDB_STATIC ?= 1
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: help env setup build run cluster test console-screenshots api-explore deploy deploy-check bench-backup bench bench-builds bench-primitives cost profile bench-tenants hostile soak bench-core sim mutations panics models mixed chaos fault-tests failover snapshots fuzz fuzz-guided verify deny fix clean clean-all
.DEFAULT_GOAL := help

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: ## Print the settings of cargo for a shell: eval "$(make -s env)".
	@printf 'export %s="%s"\n' CARGO_TARGET_DIR "$(CARGO_TARGET_DIR)" ROCKSDB_LIB_DIR "$(ROCKSDB_LIB_DIR)" \
		ROCKSDB_STATIC "$(ROCKSDB_STATIC)"

setup: ## Install what the build needs and this machine lacks.
	@tools/setup
	@tools/rocksdb "$(ROCKSDB_LIB_DIR)"
	@tools/build-cache "$(CARGO_TARGET_DIR)"

build: setup ## Build all programs, optimised, into bin/.
	cargo build --release --workspace --bins
	@tools/install-programs

run: setup ## Build and start one process with everything in it; flags in ARGS="...".
	cargo build --release --workspace --bin holdfast-standalone
	@tools/install-programs holdfast-standalone
	@exec bin/holdfast-standalone $(ARGS)

cluster: build ## Build and start three nodes and a gateway; flags in ARGS="...".
	@exec bin/dev cluster up $(ARGS)

# Most tests wait for clusters rather than compute: more of them than processors run at once.
test: export RUST_TEST_THREADS ?= $(shell n=$$(nproc); echo $$((n > 4 ? n : 4)))
test: build ## Run all tests; LANES=n (3) test programs at a time.
	@tools/run-tests

console-screenshots: build ## Take screenshots of the console with live data; skipped with a notice without Chromium.
	cargo test --release --workspace --test browser -- --nocapture pictures

api-explore: build ## Search with schemathesis for responses that the OpenAPI document does not list.
	cargo test --release --workspace --test behaviour -- --ignored --nocapture no_answer_is_unlisted

deploy: build ## Check alert rules, the alerts that they raise, and the metrics of a running process with promtool.
	promtool="$$(tools/promtool)" && HOLDFAST_PROMTOOL="$$promtool" \
		cargo test --release --workspace --test tidy --test behaviour -- prometheus_itself

bench-tenants: build ## Measure how a loud tenant slows a quiet one, and the throughput under overload; flags in ARGS="...".
	bin/dev bench --workloads neighbours,overload --seconds 10 --warm-up 2 $(ARGS)

# Without a folder in BEFORE the table has no column of an earlier build; it is where that build's rows were written.
hostile: build ## Run each known attack beside a quiet account: MINUTES=n (30), ACCOUNTS=n (1), ONLY="name ...", ON=cluster.
	HOLDFAST_HOSTILE_MINUTES=$(or $(MINUTES),30) HOLDFAST_HOSTILE_ONLY="$(ONLY)" HOLDFAST_HOSTILE_ON=$(ON) \
		HOLDFAST_HOSTILE_ACCOUNTS="$(ACCOUNTS)" HOLDFAST_HOSTILE_KILL_EVERY=$(KILL_EVERY) \
		HOLDFAST_HOSTILE_OUT="$(abspath $(or $(OUT),docs/bench))" \
		HOLDFAST_HOSTILE_BEFORE=$(if $(BEFORE),"$(abspath $(BEFORE))/hostile.json") \
		cargo test --release --workspace --test long -- --ignored --nocapture hostile_tenant::

soak: ON = cluster
soak: ACCOUNTS = 1 2
soak: KILL_EVERY = 1
soak: OUT = data/soak
soak: hostile ## Run the attacks on three nodes, by one account and then by two; kill all nodes after each attack.

cost: setup ## Measure the cost of each command in the core as the state grows; writes docs/bench/cost.md.
	HOLDFAST_COST_TABLE="$(abspath docs/bench/cost.md)" cargo test --release --workspace --test behaviour -- --nocapture cost_table

# What `make bench` measures; the workloads between tenants have a target of their own.
WORKLOADS ?= pairs,pairs-one-namespace,contended,readers-writers,extend,get,holds,idle,growth,failover,watchers

bench: build ## Benchmark Holdfast, etcd and Redis (half an hour) and write the results to docs/bench; flags in ARGS="...".
	bin/dev bench --workloads $(WORKLOADS) --holds 1000000 --rates 400 --compare etcd,redis --out docs/bench $(ARGS)

bench-builds: build ## Measure pairs with this build and with the programs in BASE=folder, in turns; ROUNDS=n (5) of each.
	tools/bench-builds $(BASE) bin --rounds $(or $(ROUNDS),5) $(ARGS)

bench-primitives: build ## Measure permits beside locks, and how soon 10,000 who wait for a latch are told; flags in ARGS="...".
	bin/dev bench --workloads permits,latch-waiters --clients 1,16,64 --fighters 16,64 $(ARGS)

profile: build ## Profile the CPU of servers under load: flame graphs and a table in docs/bench. Needs perf.
	@tools/profile docs/bench

bench-core: setup ## Measure the core (queues of 100,000 too), the codec, the committer and a replica without network.
	cargo test --release --workspace --test measure -- --ignored --nocapture
	cargo bench --workspace --bench core --bench codec --bench committer --bench replica

chaos: build ## Inject random faults into a loaded cluster for MINUTES=n (5), from SEED=n on; print how to repeat a finding.
	HOLDFAST_CHAOS_SECONDS=$$(( $(or $(MINUTES),5) * 60 )) $(if $(SEED),HOLDFAST_CHAOS_SEED=$(SEED)) \
		cargo test --release --workspace --test long -- --ignored --nocapture chaos::

mixed: build ## Run two builds of nodes in one cluster; one has an additional rules version and command.
	cargo build --release --workspace --bin holdfast-node --features holdfast-node-program/extra-command
	mkdir -p "$(CARGO_TARGET_DIR)/extra" && cp "$(CARGO_TARGET_DIR)/release/holdfast-node" "$(CARGO_TARGET_DIR)/extra/"
	cargo build --release --workspace --bin holdfast-node
	HOLDFAST_OTHER_NODE="$(CARGO_TARGET_DIR)/extra/holdfast-node" \
		cargo test --release --workspace --test long -- --nocapture mixed_versions::

fault-tests: build ## Damage files of a node one by one, fill disks, fail a disk, slow down the network, set clocks.
	cargo test --release --workspace --test long -- --include-ignored --nocapture \
		corruption:: lost_data:: full_disk:: slow_network:: wall_clock::

failover: build ## Kill leaders KILLS=n (100) times, idle and loaded, or ONLY=idle; print how soon locks are granted again.
	HOLDFAST_FAILOVER_KILLS=$(or $(KILLS),100) HOLDFAST_FAILOVER_ONLY=$(ONLY) \
		cargo test --release --workspace --test long -- --nocapture after_the_death_of_a_leader

snapshots: build ## Send snapshots of 6 GiB and, between nodes, 1 GiB over slow networks, with cuts and restarts; 20 GB of disk in TMPDIR.
	cargo test --release --workspace --test long -- --ignored --nocapture large_snapshot::
	cargo test --release --workspace --test group -- --ignored --nocapture six_gibibytes

bench-backup: build ## Back up and restore a cluster with 1,000,000 holds, and print time and size.
	cargo test --release --workspace --test long -- --ignored --nocapture backup::

fuzz: setup ## Feed damaged bytes to every parser, for SECONDS=n (60) or RUNS=n each; SEED=n, ONLY="name ...".
	HOLDFAST_FUZZ_SECONDS=$(or $(SECONDS),60) $(if $(RUNS),HOLDFAST_FUZZ_RUNS=$(RUNS)) \
		$(if $(SEED),HOLDFAST_FUZZ_SEED=$(SEED)) HOLDFAST_FUZZ_ONLY="$(ONLY)" \
		cargo test --release -p holdfast-fuzz-tests -- --nocapture

fuzz-guided: setup ## Fuzz all parsers, or TARGET="name ...", with libFuzzer, guided by coverage, for SECONDS=n (60) each.
	@tools/fuzz-guided $(or $(SECONDS),60) $(TARGET)

# No other build reaches the programs of the simulation: they need a feature.
SIM_PROGRAMS = --bin holdfast-sim --bin holdfast-sim-seed

sim: setup ## Simulate whole clusters with faults: SEEDS=n of them, from FIRST=n on, or one again with SEED=n.
	cargo build --release --workspace $(SIM_PROGRAMS) --features holdfast-sim-tests/sim
	@"$(CARGO_TARGET_DIR)/release/holdfast-sim" $(ARGS)

# A build with mutations. It shares the dependencies of the others; its programs are kept apart.
MUTATED = $(CARGO_TARGET_DIR)/mutated
define mutated-simulation
	cargo build --release --workspace $(SIM_PROGRAMS) --features holdfast-sim-tests/mutations
	@mkdir -p "$(MUTATED)"
	@cp "$(CARGO_TARGET_DIR)/release/holdfast-sim" "$(CARGO_TARGET_DIR)/release/holdfast-sim-seed" "$(MUTATED)/"
endef

# Mutations that the simulation does not find belong to tests of replication, node, core and backend.
mutations: setup ## Enable each mutation in simulated clusters, and print which check finds it after how many seeds.
	$(mutated-simulation)
	@SEEDS=$(or $(SEEDS),200) "$(MUTATED)/holdfast-sim" --mutations $(ARGS)
	cargo test --release --workspace --lib --test group --test node --test model --features holdfast-sim-tests/mutations \
		-- --ignored --nocapture every_mutation_breaks_its_test

# Runs of the same source add up in this file, over as many calls as it takes.
EVIDENCE ?= docs/evidence/panics.jsonl

panics: setup ## Simulate clusters whose tasks and state machines panic, until SEEDS=n (2000) of this source are on record.
	cargo test --release --workspace --test panics --features holdfast-sim-tests/mutations \
		-- --nocapture tasks::
	$(mutated-simulation)
	@SEEDS=$(or $(SEEDS),2000) "$(MUTATED)/holdfast-sim" --panics \
		$(if $(SEED),,--evidence "$(EVIDENCE)" --source "$$(tools/sim-source)") $(ARGS)

# With ONLY, what is not named is left out; session-durable names the model in Rust.
models: setup ## Check the models of docs/models (half an hour; SHORT=1: three minutes), all or ONLY="name ..."; RESUME=1.
	$(if $(filter-out session-durable,$(ONLY)),,cargo test --release --workspace --test session_durable -- --nocapture \
		--test-threads 1 --include-ignored $(if $(SHORT),--skip large_bounds))
	@if [ "$(ONLY)" = session-durable ]; then \
		true; \
	elif command -v python3 >/dev/null; then \
		tools/models $(if $(SHORT),--short,--write docs/models/results.md) $(if $(RESUME),--resume) $(ONLY); \
	else \
		echo "!! SKIPPED: the models in TLA+ were NOT checked: there is no python3" >&2; \
	fi

verify: setup ## Check format, lints and documentation without changing them.
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --lib --no-deps --locked

deploy-check: ## Check every file in deploy/ with the tool that reads it; print what could not be checked.
	@tools/deploy-check

deny: ## Check licences, advisories and sources of dependencies, where cargo-deny is installed.
	@if command -v cargo-deny >/dev/null; then cargo deny check; \
		else echo "SKIPPED: cargo-deny is not installed: cargo install --locked cargo-deny" >&2; fi

fix: setup ## Format the code, and apply the fixes that clippy suggests.
	cargo clippy --release --workspace --all-targets --fix --allow-dirty --allow-staged
	cargo fmt --all

clean: ## Remove what was built from this workspace; RocksDB and other dependencies stay.
	rm -rf bin
	cargo clean --release --workspace

clean-all: ## Remove everything that was built, for every checkout; the next build compiles RocksDB again.
	rm -rf bin "$(ROCKSDB_LIB_DIR)"
	cargo clean

# The names of the release before, for one release.
.PHONY: plants backup-of-a-million tenants explore console-shots faults
plants: mutations
backup-of-a-million: bench-backup
tenants: bench-tenants
explore: api-explore
console-shots: console-screenshots
faults: fault-tests
