#!/usr/bin/env bash
# Builds the package for this machine and checks its contents. This needs neither root nor another system;
# scripts/test-packages.sh installs the package on clean systems.
#
#   scripts/check-package.sh [--if-possible]
#
# `make check` runs this, --if-possible. That skips the test, with a message, if a tool is missing and cannot be installed.
# NO_BUILD=1 checks the package that is there.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}
expect() { # what it is, expected, found
    [ "$2" = "$3" ] || fail "$1: expected '$2', found '$3'"
    echo "ok: $1"
}

tools=(cargo cc libclang python3-venv readelf dpkg-deb redis-server)
case $(uname -m) in
x86_64) name=amd64 ;;
aarch64) name=arm64 ;;
*) name='' ;;
esac
if [ "${1:-}" != --if-possible ]; then
    scripts/install-tools.sh "${tools[@]}"
elif [ -z "$name" ]; then
    scripts/skip.sh check-package "packages are made for amd64 and arm64"
    exit 0
elif ! why=$(scripts/install-tools.sh "${tools[@]}" 2>&1) ||
    { [ -z "${NO_BUILD:-}" ] && ! why=$(scripts/package.sh --tools 2>&1); }; then
    scripts/skip.sh check-package "${why##*$'\n'}: make package"
    exit 0
fi

[ -n "${NO_BUILD:-}" ] || scripts/package.sh "$name"

dist=${CARGO_TARGET_DIR:-target}/package/dist
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
stem=redis-ratelimit-$version-linux-$name
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(cd "$dist" && sha256sum --quiet --check SHA256SUMS)
module=$dist/libredis_ratelimit-linux-$name.so
deb=$dist/redis-ratelimit_$version-1_$name.deb
for file in "${module##*/}" "$stem.tar.gz" "$stem.cdx.json" "${deb##*/}" Dockerfile redis.conf; do
    expect "checksums of $file" 1 "$(grep -c " $file\$" "$dist/SHA256SUMS")"
done

tar -C "$work" -xzf "$dist/$stem.tar.gz"
expect "the module in the archive" "" "$(cmp "$work/$stem/libredis_ratelimit.so" "$module" 2>&1)"
dpkg-deb -x "$deb" "$work/deb"
doc=$work/deb/usr/share/doc/redis-ratelimit
engine=clients/typescript/wasm/engine.wasm
for file in README.md CHANGELOG.md LICENSE redis.conf.example docs/operations.md; do
    [ -e "$work/$stem/$file" ] || fail "the archive has no $file"
done
expect "engine.wasm in the archive" "" "$(cmp $engine "$work/$stem/docs/playground/engine.wasm" 2>&1)"
for folder in "$work/$stem" "$doc"; do
    expect "the metrics of ${folder##*/}" "" "$(diff -r examples/metrics "$folder/examples/metrics")"
done
expect "the folders in the documents of the .deb" "docs docs/pictures examples examples/metrics" \
    "$(cd "$doc" && find . -mindepth 1 -type d -printf '%P\n' | sort | paste -sd' ')"
for file in README.md LICENSE redis.conf.example docs/operations.md; do
    [ -e "$doc/$file" ] || fail "the .deb has no $file"
done
# Nothing that pip and npm left in the checkout.
if tracked=$(git ls-files clients docs examples 2>/dev/null); then
    expect "the files of the archive that are not tracked" "$engine docs/playground/engine.wasm" \
        "$(cd "$work/$stem" && find clients docs examples ! -type d | sort | comm -23 - <(sort <<<"$tracked") | paste -sd' ')"
fi

engine_bytes=$(gzip -9c $engine | wc -c)
# Without rust-src it is built with the standard library as rustup has it, see scripts/build-engine.sh.
most=$([ -d "$(rustc --print sysroot)/lib/rustlib/src/rust/library" ] && echo 310000 || echo 400000)
[ "$engine_bytes" -lt "$most" ] || fail "engine.wasm must be below $most bytes gzipped, and has $engine_bytes"
echo "ok: engine.wasm has $engine_bytes bytes gzipped"

field() { dpkg-deb -f "$deb" "$1"; }
expect "Version" "$version-1" "$(field Version)"
expect "Homepage" "${HOMEPAGE:-file:///usr/share/doc/redis-ratelimit/README.md}" "$(field Homepage)"
expect "the changelog's version" "redis-ratelimit ($version-1) unstable; urgency=medium" \
    "$(gzip -dc "$doc/changelog.Debian.gz" | head -n 1)"
expect "the changelog" "" "$(gzip -dc "$doc/changelog.gz" | diff - CHANGELOG.md)"

hash=$(sha256sum "$module" | cut -d' ' -f1)
expect "the SBOM's hash of the module" "$hash" "$(python3 -c '
import json, sys
bom = json.load(open(sys.argv[1]))
names = {component["bom-ref"] for component in bom["components"]} | {bom["metadata"]["component"]["bom-ref"]}
for entry in bom["dependencies"]:
    assert {entry["ref"], *entry["dependsOn"]} <= names, entry
assert len(names) > 10 and len(bom["dependencies"]) == len(names), names
[own] = bom["metadata"]["component"]["hashes"]
print(own["content"])' "$dist/$stem.cdx.json")"
expect "the image's version" "ARG VERSION=$version" "$(grep '^ARG VERSION=' "$dist/Dockerfile")"

printf '%s\n' '## [Unreleased]' '- new' '## [1.1.0] - 2026-01-02' '- this' '## [1.0.0]' '- old' >"$work/notes.md"
expect "the notes of a version" "- this" "$(scripts/release-notes.sh 1.1.0 "$work/notes.md" | grep .)"
! scripts/release-notes.sh 1.2.0 "$work/notes.md" 2>/dev/null || fail "there are notes of a version without a section"

# Loaded and asked.
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
"$(scripts/find-server.sh)" --bind 127.0.0.1 --port "$port" --save '' --dir "$work" \
    --loadmodule "$(realpath "$module")" >"$work/log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait; rm -rf "$work"' EXIT
for _ in {1..100}; do
    ! { exec 3<>"/dev/tcp/127.0.0.1/$port"; } 2>/dev/null || break
    sleep 0.1
done
printf 'RL.THROTTLE user:1 15 30 60 1\r\n' >&3
expect "the first answer" "*5 :0 :16 :15 :-1 :2" "$(timeout 5 head -n 6 <&3 | tr -d '\r' | paste -sd' ')"
