#!/usr/bin/env bash
# Installs into target/clients the client libraries that the tests run, as pinned in tests/clients, and the packages that
# the clients of this repository are tested with, as pinned in clients. Skips what is already installed. Also builds the
# engines of MemoryLimiter. `make tools`, `make test-clients` and whatever else needs clients run this.
#
#   scripts/install-clients.sh [--if-possible] [--versions | --node-only]
#
# --if-possible says what it leaves out and why, instead of failing. --versions also installs the older versions of
# clients/python/versions.txt, LiteLLM, and the source archive of limits. --node-only leaves Python out.
set -euo pipefail
cd "$(dirname "$0")/.."

pins=$PWD/tests/clients
clients=${CARGO_TARGET_DIR:-target}/clients
if_possible=no
versions=no
node_only=no
for option in "$@"; do
    case $option in
    --if-possible) if_possible=yes ;;
    --versions) versions=yes ;;
    --node-only) node_only=yes ;;
    *) echo "usage: $0 [--if-possible] [--versions | --node-only]" >&2 && exit 2 ;;
    esac
done

leave_out() {
    scripts/skip.sh "clients of $1" "$2"
    [ "$if_possible" = yes ]
}

# Makes an environment: its folder, and the file that lists its packages.
install_python() {
    cmp -s "$2" "$1/requirements.txt" && return
    rm -rf "$1"
    python3 -m venv "$1" &&
        "$1/bin/pip" install --quiet --disable-pip-version-check --requirement "$2" &&
        cp "$2" "$1/requirements.txt"
}

# An environment for each line of clients/python/versions.txt.
install_versions() {
    local pin file=$clients/python-versions/pin.txt
    mkdir -p "$clients/python-versions"
    while read -r pin; do
        printf '%s\nasync-timeout==5.0.1; python_full_version < "3.11.3"\n' "$pin" >"$file"
        install_python "$clients/python-versions/$pin" "$file" || return
    done < <(grep -v '^#' clients/python/versions.txt)
}

# The source archive of limits, whose tests run on our storage for it, in the version that is installed.
install_limits_tests() {
    local version
    version=$(sed -n 's/^limits==//p' clients/python/requirements-test.txt)
    [ -f "$clients/limits/limits-$version.tar.gz" ] && return
    rm -rf "$clients/limits"
    "$clients/python/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary limits \
        --dest "$clients/limits" "limits==$version"
}

# The packages of a folder below target/clients, as the lock file of another says.
install_packages() {
    cmp -s "$2/package-lock.json" "$1/node_modules/installed.json" && return
    mkdir -p "$1"
    cp "$2/package.json" "$2/package-lock.json" "$1/"
    npm ci --prefix "$1" --ignore-scripts --no-audit --no-fund --loglevel error &&
        cp "$2/package-lock.json" "$1/node_modules/installed.json"
}

# Node looks for packages in the folders above the script, so the scripts are linked to from there: see tests/support.
install_node() {
    ln -sfn "$pins" "$clients/scripts"
    ln -sfn "$PWD/examples" "$clients/examples"
    install_packages "$clients" "$pins" && ln -sfn ../typescript "$clients/node_modules/redis-ratelimit-client"
}

build_engine() { # client
    if ! scripts/install-tools.sh --look cargo; then
        leave_out "clients/$1, MemoryLimiter" "no cargo"
    else
        scripts/build-engine.sh "$1" || leave_out "clients/$1, MemoryLimiter" "cargo could not build clients/$1/native"
    fi
}

mkdir -p "$clients"
if [ $node_only = yes ]; then
    :
elif ! scripts/install-tools.sh --look python3-venv; then
    leave_out Python "no python3 with venv and pip"
else
    install_python "$clients/venv" "$pins/requirements.txt" ||
        leave_out Python "pip could not install tests/clients/requirements.txt"
    install_python "$clients/python" clients/python/requirements-test.txt ||
        leave_out clients/python "pip could not install clients/python/requirements-test.txt"
    if [ "$versions" = yes ]; then
        install_versions || leave_out clients/python "pip could not install clients/python/versions.txt"
        install_python "$clients/litellm" clients/python/requirements-litellm.txt ||
            leave_out clients/python "pip could not install clients/python/requirements-litellm.txt"
        install_limits_tests || leave_out clients/python "pip could not download the source archive of limits"
    fi
    build_engine python
fi
if ! scripts/install-tools.sh --look node npm; then
    leave_out Node "no node 20 or later with npm"
else
    install_node || leave_out Node "npm could not install tests/clients/package-lock.json"
    for folder in typescript typescript/lint; do
        install_packages "$clients/${folder#typescript/}" "$PWD/clients/$folder" ||
            leave_out "clients/$folder" "npm could not install clients/$folder/package-lock.json"
    done
    build_engine typescript
fi
