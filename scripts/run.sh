#!/usr/bin/env bash
# Builds the module and serves it on 127.0.0.1 until Ctrl-C: `make run`. PORT= (6379) and REDIS_SERVER= choose others.
set -euo pipefail
cd "$(dirname "$0")/.."

port=${PORT:-6379}

die() {
    printf '%s\n' "$@" >&2
    exit 1
}
port_answers() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

if ! [[ $port =~ ^[1-9][0-9]{0,4}$ ]] || [ "$port" -gt 65535 ]; then
    die "PORT=$port is no port: give a number from 1 to 65535, as in 'make run PORT=6380'."
elif port_answers; then
    die "Port $port of 127.0.0.1 is taken. Stop what listens there, or choose another: make run PORT=$((port % 65535 + 1))"
fi

scripts/install-tools.sh cargo cc libclang redis-server
cargo build --release
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
module=$target/release/libredis_ratelimit.so
server=$(scripts/find-server.sh)
cli=$(type -P redis-cli || type -P valkey-cli || true)
if [ -n "$cli" ]; then
    cli=${cli##*/}
elif [ -x "${server%/*}/redis-cli" ]; then
    cli=${server%/*}/redis-cli # fetched together with the server
else
    cli=redis-cli
fi
mkdir -p "$target/run"
# A copy, because CONFIG REWRITE writes into the file that the server was started with.
cp redis.conf.example "$target/run/redis.conf"

# Waits for the server in the background and then says what to try; the server itself stays in front.
(
    for _ in {1..100}; do
        sleep 0.1
        kill -0 $$ 2>/dev/null || exit 0
        port_answers || continue
        cat <<END

  The rate limiter listens on 127.0.0.1:$port. In another terminal:

      $cli -p $port RL.THROTTLE user:1 15 30 60s

  A fresh key answers 0 16 15 -1 2: allowed, 16 at once at most, 15 left, no wait, full again in 2 seconds.
  The other commands are in docs/commands.md. Ctrl-C stops the server; it keeps nothing.

END
        exit 0
    done
) &

exec "$server" "$target/run/redis.conf" --bind 127.0.0.1 --port "$port" --dir "$target/run" --save '' --loadmodule "$module"
