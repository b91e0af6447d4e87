#!/usr/bin/env bash
# Installs the named tools that are missing, and prints nothing if none is. The Makefile and most scripts run this first.
#
#   scripts/install-tools.sh [--look] cargo rustfmt clippy cargo-deny cargo-fuzz cc c++ make libclang pip python3-venv \
#       node npm redis-server openssl patch shellcheck valgrind readelf dpkg-deb debootstrap debian-archive-keyring \
#       qemu-user buildah python3 prometheus prometheus-redis-exporter chromium wasm32
#
# --look installs nothing: it names those that are missing, and fails.
# Debian and Ubuntu: uses apt-get, as root or through sudo. Other systems: lists the missing packages and exits. A server
# that is too old stays installed, and a newer one is fetched into target/servers.
set -euo pipefail
cd "$(dirname "$0")/.."

die() {
    printf '%s\n' "$@" >&2
    exit 1
}

have() {
    case $1 in
    cargo) command -v cargo >/dev/null && rust_is_new_enough ;;
    rustfmt) cargo fmt --version >/dev/null 2>&1 ;;
    clippy) cargo clippy --version >/dev/null 2>&1 ;;
    cc) printf '#include <stdlib.h>\n' | cc -E -x c - >/dev/null 2>&1 ;;
    libclang) have_libclang ;;
    wasm32) compgen -G "$(rustc --print target-libdir --target wasm32-unknown-unknown)/libstd-*.rlib" >/dev/null ;;
    pip) python3 -m pip --version >/dev/null 2>&1 ;;
    redis-server) scripts/find-server.sh >/dev/null 2>&1 ;;
    c++) printf '#include <vector>\n' | c++ -E -x c++ - >/dev/null 2>&1 ;;
    cargo-deny) cargo deny --version >/dev/null 2>&1 ;;
    cargo-fuzz) cargo fuzz --version >/dev/null 2>&1 ;;
    python3-venv) python3 -c 'import ensurepip, sys, venv; assert sys.version_info >= (3, 10)' >/dev/null 2>&1 ;;
    node) node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' >/dev/null 2>&1 ;;
    qemu-user) command -v qemu-aarch64-static >/dev/null ;;
    debian-archive-keyring) [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] ;;
    prometheus) command -v prometheus >/dev/null && command -v promtool >/dev/null ;;
    prometheus-redis-exporter) command -v "${REDIS_EXPORTER:-prometheus-redis-exporter}" >/dev/null ;;
    make | npm | openssl | patch | python3 | shellcheck | valgrind | readelf | dpkg-deb | debootstrap | buildah | chromium)
        command -v "$1" >/dev/null
        ;;
    *) die "$0 does not know the tool $1" ;;
    esac
}

rust_wanted() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml; }
rust_pinned() { sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml; }
rust_found() { rustc --version 2>/dev/null | cut -d' ' -f2 | cut -d- -f1; }
rust_is_new_enough() {
    local wanted found
    wanted=$(rust_wanted)
    found=$(rust_found)
    [ -n "$found" ] && [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ]
}

# bindgen loads libclang while it builds and needs clang's own C headers (stddef.h) next to it.
have_libclang() {
    local lib dir
    for lib in ${LIBCLANG_PATH:+"$LIBCLANG_PATH"/libclang*} \
        /usr/lib/llvm*/lib/libclang{,-*}.so* /usr/lib64/llvm*/lib*/libclang{,-*}.so* /usr/lib{64,}/libclang{,-*}.so* \
        /usr/local/lib/libclang{,-*}.so* /usr/local/llvm*/lib/libclang{,-*}.so*; do
        [ -e "$lib" ] || continue
        for dir in "$(dirname "$lib")" "$(dirname "$lib")/../lib" "$(dirname "$(readlink -f "$lib")")"; do
            compgen -G "$dir/clang/*/include/stddef.h" >/dev/null && return 0
        done
    done
    return 1
}

# The package of a server that is new enough, Redis or Valkey; none if apt-get has only older ones. If apt's lists are still
# empty it assumes redis-server, which every Debian and Ubuntu has.
server_package() {
    local candidate
    candidate=$(apt-cache policy redis-server 2>/dev/null | sed -n 's/^ *Candidate: \([0-9]*:\)\{0,1\}//p')
    if scripts/find-server.sh --release "Redis server v=$candidate"; then
        echo redis-server
    elif apt-cache show valkey-server >/dev/null 2>&1; then
        echo valkey-server
    elif ! apt-cache show redis-server >/dev/null 2>&1; then
        echo redis-server
    fi
}

fetch_server() {
    local name
    scripts/find-server.sh || true
    echo "Fetching one into target/servers; what is installed stays as it is."
    for name in redis-7.0 valkey-9.1 redis-6.2; do
        scripts/fetch-servers.sh $name || true
        ! have redis-server || return 0
    done
    die "No server could be fetched. Install Redis 6.2 or later, or Valkey, and name it: REDIS_SERVER=/path/to/redis-server"
}

# Prints the packages of tools for a package manager. On Debian the package of clang's headers has a version in its name,
# which is read from the dependencies of libclang1; libclang-dev would take 350 MB more.
names() { # apt, dnf or apk; tools
    local manager=$1 tool version all=()
    shift
    for tool in "$@"; do
        case $manager,$tool in
        apt,cc) all+=(gcc libc6-dev) ;;
        dnf,cc) all+=(gcc) ;;
        apk,cc) all+=(gcc musl-dev) ;;
        apt,c++ | apk,c++) all+=(g++) ;;
        dnf,c++) all+=(gcc-c++) ;;
        apt,libclang)
            version=$(apt-cache depends libclang1 2>/dev/null |
                sed -n 's/.*Depends: libclang1-\([0-9]*\).*/\1/p' | head -n 1)
            if [ -n "$version" ]; then all+=(libclang1 "libclang-common-$version-dev"); else all+=(libclang-dev); fi
            ;;
        dnf,libclang) all+=(clang-devel) ;;
        apk,libclang) all+=(clang-dev) ;;
        apt,redis-server) mapfile -t -O ${#all[@]} all < <(server_package) ;;
        *,redis-server) all+=("redis (or valkey)") ;;
        dnf,python3-venv | apk,python3-venv) all+=(python3) ;;
        apt,pip | dnf,pip) all+=(python3-pip) ;;
        apk,pip) all+=(py3-pip) ;;
        *,node) all+=(nodejs) ;;
        dnf,shellcheck) all+=(ShellCheck) ;;
        apt,readelf) all+=(binutils) ;;
        apt,wasm32) all+=(libstd-rust-dev-wasm32 lld) ;;
        apt,dpkg-deb) all+=(dpkg) ;;
        apt,qemu-user) all+=(qemu-user-static) ;;
        *) all+=("$tool") ;;
        esac
    done
    echo "${all[*]}"
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# Prints those of the packages that start a service, now and at every boot, where there is systemd. Only their programs are
# needed here. Without systemd, as in containers, Debian and Ubuntu start no services.
services_of() { # package ...
    [ -d /run/systemd/system ] || return 0
    printf '%s\n' "$@" | grep -xE 'redis-server|valkey-server|prometheus|prometheus-redis-exporter' || true
}

# Prints what root types to install the packages of tools, with their services off.
line_for_root() { # tool ...
    local packages services
    read -r -a packages <<<"$(names apt "$@")"
    services=$(services_of "${packages[@]}")
    echo "  apt-get update && apt-get install --no-install-recommends ${packages[*]}" \
        ${services:+"&& systemctl disable --now ${services//$'\n'/ }"}
}

give_up() { die "These could not be installed: ${missing[*]}. As root, try:" "$(line_for_root "${missing[@]}")"; }

# Services are masked while apt works, and then disabled, so that none is ever started. The mask is in /run, so that it is
# gone after a reboot if this script is killed.
install_with_apt() {
    local packages services
    echo "Missing: ${missing[*]}. Installing with apt-get."
    as_root apt-get update -q || echo "apt-get update failed; going on with the package lists as they are." >&2
    read -r -a packages <<<"$(names apt "${missing[@]}")"
    # Only now is it known that the system's server is too old.
    case " ${missing[*]} " in
    *' redis-server '*) [ -n "$(server_package)" ] || fetch=yes ;;
    esac
    [ ${#packages[@]} -gt 0 ] || return 0
    mapfile -t services < <(services_of "${packages[@]}")
    if [ ${#services[@]} -gt 0 ]; then
        as_root systemctl mask --runtime --quiet "${services[@]}" || give_up
        # shellcheck disable=SC2064
        trap "as_root systemctl unmask --runtime --quiet ${services[*]}" EXIT
    fi
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends "${packages[@]}" || give_up
    if [ ${#services[@]} -gt 0 ]; then
        trap - EXIT
        as_root systemctl unmask --runtime --quiet "${services[@]}"
        as_root systemctl disable --quiet "${services[@]}"
        echo "Only the programs are used here; these services are left off (systemctl enable --now ...): ${services[*]}"
    fi
}

missing=()
if [ "${1:-}" = --look ]; then
    shift
    for tool in "$@"; do have "$tool" || missing+=("$tool"); done
    [ ${#missing[@]} = 0 ] || die "Missing: ${missing[*]}"
    exit 0
fi

[ -z "${REDIS_SERVER:-}" ] || case " $* " in
*' redis-server '*) scripts/find-server.sh >/dev/null || exit 1 ;;
esac

fetch=no
for tool in "$@"; do
    have "$tool" && continue
    case $tool in
    cargo) die "Rust $(rust_wanted) or later is needed (found: $(rust_found | grep . || echo none))." \
        "Install it with rustup: https://rustup.rs. rustup takes the release that rust-toolchain.toml names;" \
        "where it may not, as offline: rustup toolchain install $(rust_pinned)," \
        "or choose another: RUSTUP_TOOLCHAIN=stable." \
        "The cargo package of an older distribution will not do." ;;
    cargo-fuzz | cargo-deny)
        crate=$tool
        # The newest one that the pinned compiler builds.
        [ "$tool" = cargo-fuzz ] || crate=$tool@0.20.2
        echo "Missing: $tool. Installing with cargo, which takes some minutes."
        cargo install --locked "$crate" || die "cargo could not install $crate"
        have "$tool" || die "$tool is still missing after: cargo install --locked $crate"
        continue
        ;;
    redis-server)
        if type -P redis-server >/dev/null || type -P valkey-server >/dev/null ||
            { command -v apt-get >/dev/null && [ -z "$(server_package)" ]; }; then
            fetch=yes
            continue
        fi
        ;;
    rustfmt | clippy) die "'cargo ${tool/rustfmt/fmt}' is missing. Add it with: rustup component add rustfmt clippy" ;;
    esac
    missing+=("$tool")
done
if [ ${#missing[@]} -gt 0 ]; then
    if ! command -v apt-get >/dev/null; then
        die "Missing: ${missing[*]}. Install the packages and try again:" \
            "  dnf install $(names dnf "${missing[@]}")" "  apk add $(names apk "${missing[@]}")"
    elif [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        die "Missing: ${missing[*]}. There is no sudo here, so install them as root and try again:" \
            "$(line_for_root "${missing[@]}")"
    fi
    install_with_apt
fi
[ $fetch = no ] || fetch_server
for tool in "${missing[@]}"; do
    have "$tool" || die "$tool is still missing after the installation of: $(names apt "$tool")"
done
