#!/usr/bin/env bash
# Installs and uses what scripts/package.sh builds, on clean systems, and prints the results. `make test-packages` runs this.
#
#   scripts/test-packages.sh [CASE ...]     all cases if none is named
#
# bookworm-redis bookworm-valkey trixie-redis trixie-valkey noble-redis
#                   the lines of docs/install.md on a clean Debian 12 or 13 or Ubuntu 24.04: install, answer, CONFIG REWRITE,
#                   upgrade, remove, purge
# bullseye-redis    Debian 11, whose server is too old: apt must refuse
# image-redis image-valkey
#                   packaging/Dockerfile on a base image made of Debian 13's packages, with buildah
# arm64             the examples of the pages and the tests of RL.THROTTLE on Debian's arm64 server under qemu
# again             builds everything a second time in another folder and compares it byte by byte
#
# Two more cases run only if they are named, as in CI each week. They need no packages:
#
# bookworm-source trixie-source noble-source
#                   `make run` and `make test` of the files that git tracks, on a clean system with nothing but make and Rust
#
# Needs root to create these systems in target/package/roots. Each case runs in its own namespaces, so nothing is mounted
# outside, and only the servers of the source cases listen on the host, on 127.0.0.1. Logs are in target/package/logs.
# NO_BUILD=1 tests the packages that are there.
set -euo pipefail
cd "$(dirname "$0")/.."

all=(
    bookworm-redis bookworm-valkey trixie-redis trixie-valkey noble-redis bullseye-redis image-redis image-valkey arm64 again
)
debian=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
ubuntu=${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}

die() {
    printf '%s\n' "$@" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || die "Root is needed, to make clean systems: sudo -E make test-packages"

mkdir -p "${CARGO_TARGET_DIR:-target}/package"
work=$(cd "${CARGO_TARGET_DIR:-target}/package" && pwd)
dist=$work/dist
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
roots=$work/roots
logs=$work/logs

# A clean system, made once and never changed: cases see it through an overlay.
make_root() { # suite
    local mirror=$debian script=$1 options=()
    [ -e "$roots/$1/made" ] && return
    rm -rf "${roots:?}/$1"
    mkdir -p "$roots/$1"
    if [ "$1" = noble ]; then
        mirror=$ubuntu script=gutsy
        options=('--components=main,universe')
        # Debian has no key of Ubuntu's. These packages are only tried here.
        [ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] || options+=(--no-check-gpg)
    fi
    unshare --mount --pid --fork --kill-child debootstrap --variant=minbase "${options[@]}" "$1" "$roots/$1/root" "$mirror" \
        "/usr/share/debootstrap/scripts/$script"
    touch "$roots/$1/made"
}

# Runs a function of this script in namespaces of its own, with a writable overlay of a clean system at $root. All mounts
# and processes of it are gone afterwards.
in_clean_root() { # suite function argument...
    make_root "$1"
    unshare --mount --pid --ipc --uts --fork --kill-child scripts/test-packages.sh --call inside "$@"
}
inside() {
    local suite=$1 node
    shift
    mount --make-rprivate /
    # The same folder for all: what is mounted there is seen in these namespaces only.
    root=$roots/mounted
    mkdir -p "$root"
    mount -t tmpfs tmpfs "$root"
    mkdir "$root"/{upper,work,root}
    mount -t overlay overlay -o "lowerdir=$roots/$suite/root,upperdir=$root/upper,workdir=$root/work" "$root/root"
    root=$root/root
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    mkdir "$root/dev/shm" "$root/dev/pts"
    for node in null:3 zero:5 full:7 random:8 urandom:9; do
        mknod -m 666 "$root/dev/${node%:*}" c 1 "${node#*:}"
    done
    ln -s /proc/self/fd "$root/dev/fd"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    export root
    "$@"
}
# With no network but a loopback of its own.
offline() { unshare --net sh -c 'ip link set lo up && exec "$@"' sh "$@"; }

# The three lines of docs/install.md under the heading for a server.
lines_for() { # server
    awk -v mark="<!-- tried: $1 -->" '$0 == mark { on = 1 } on && /^```$/ { exit } on && !/^(<!--|```|$)/' docs/install.md
}

try_debian() { # suite server
    mkdir "$root/packages" "$root/packages/upgrade"
    cp "$dist"/*_amd64.deb packaging/tests/debian.sh "$root/packages/"
    lines_for "$2" >"$root/packages/lines"
    [ "$(wc -l <"$root/packages/lines")" = 3 ] || die "docs/install.md has no three lines marked '<!-- tried: $2 -->'."
    if [ "$1-$2" = bookworm-valkey ]; then
        echo "deb $debian bookworm-backports main" >>"$root/etc/apt/sources.list"
    fi
    # The same package, as the next revision.
    dpkg-deb -R "$dist"/*_amd64.deb "$root/packages/next"
    sed -i 's/^Version: \(.*\)-1$/Version: \1-2/' "$root/packages/next/DEBIAN/control"
    dpkg-deb --root-owner-group -Zxz -b "$root/packages/next" "$root/packages/upgrade" >/dev/null
    rm -r "$root/packages/next"
    if [ "$1" = bullseye ]; then
        chroot "$root" /packages/debian.sh refuse "$2"
    else
        chroot "$root" /packages/debian.sh fetch "$2"
        offline chroot "$root" /packages/debian.sh try "$2"
    fi
}

try_source() {
    local answer='' source=$root/source rust=$root/opt/rust log=$root/test.log totals
    mkdir "$source" "$rust"
    git ls-files -z | tar --null --files-from=- -cf - | tar -C "$source" -xf -
    # What rustup installs, and the certificates that it is fetched with.
    mount --bind -o ro "$(rustc --print sysroot)" "$rust"
    mkdir -p "$root/etc/ssl/certs"
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    in_source apt-get -q update
    in_source apt-get -q install -y --no-install-recommends make

    echo "--- make run"
    in_source make run PORT=16379 &
    for _ in {1..1800}; do
        sleep 1
        kill -0 $! 2>/dev/null || die "make run ended before it served"
        answer=$(chroot "$root" redis-cli -p 16379 RL.THROTTLE user:1 15 30 60 1 2>/dev/null | paste -sd' ') || true
        [ -z "$answer" ] || break
    done
    [ "$answer" = "0 16 15 -1 2" ] || die "the server of make run answers: $answer"
    chroot "$root" redis-cli -p 16379 SHUTDOWN NOSAVE
    wait $!

    echo "--- make test"
    in_source make test | tee "$log"
    totals=$(tail -n 1 "$log")
    [[ $totals =~ ^[1-9][0-9]*\ passed,\ 0\ failed ]] || die "make test ends with: $totals"
}
in_source() { # command...: without the environment of this machine
    chroot "$root" env -i HOME=/root PATH=/opt/rust/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        env -C /source "$@"
}

try_image() { # server
    chroot "$root" apt-get -q update
    DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get -q install -y --no-install-recommends "$1-server" busybox-static
    rm -rf "$root"/var/{cache/apt,lib/apt/lists}
    offline scripts/test-packages.sh --call try_image_offline "$1"
}
try_image_offline() { # server
    local storage container image module=/usr/lib/redis/modules/libredis_ratelimit.so answer file found command
    storage=$(mktemp -d -p "$(dirname "$root")")
    export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot TMPDIR=$storage CONTAINERS_REGISTRIES_CONF=/dev/null
    buildah() { command buildah --root "$storage/root" --runroot "$storage/run" "$@"; }

    # Base images in the manner of the official ones, of Debian's packages.
    install -m 755 packaging/tests/entrypoint.sh "$root/entrypoint.sh"
    container=$(buildah from scratch)
    tar -C "$root" --one-file-system --exclude=./dev --exclude=./proc --exclude=./sys -cf - . |
        tar -C "$(buildah mount "$container")" -xf -
    buildah umount "$container" >/dev/null
    buildah config --env SERVER="$1-server" --entrypoint '["/entrypoint.sh"]' --cmd "$1-server" --user "$1" "$container"
    buildah commit --quiet "$container" localhost/base
    container=$(buildah from scratch)
    buildah copy --quiet "$container" "$root/bin/busybox" /bin/busybox
    buildah copy --quiet "$container" "$root/bin/busybox" /bin/cp
    buildah commit --quiet "$container" localhost/busybox

    for image in module init server; do
        # The format of docker, which knows HEALTHCHECK.
        buildah bud --quiet --pull-never --format docker --target "$image" --build-arg BASE=localhost/base \
            --build-arg INIT_BASE=localhost/busybox --tag "localhost/$image" --file "$dist/Dockerfile" "$dist"
        found=$(inspect "localhost/$image" '{{index .Docker.Config.Labels "org.opencontainers.image.version"}}')
        [ "$found" = "$version" ] || die "the label of the version of $image is: $found"
    done

    echo "--- module: only the file"
    container=$(buildah from --pull-never localhost/module)
    found=$(cd "$(buildah mount "$container")" && find . -type f -printf '%p %m')
    [ "$found" = "./libredis_ratelimit.so 755" ] || die "the stage module holds: $found"

    echo "--- init: puts it into /modules"
    mkdir -m 777 "$storage/modules"
    run localhost/init --volume "$storage/modules:/modules"
    cmp "$storage/modules/libredis_ratelimit.so" "$dist/libredis_ratelimit-linux-amd64.so"
    [ -x "$storage/modules/libredis_ratelimit.so" ] || die "the file is not executable, so no server would load it"

    echo "--- server: answers"
    container=$(buildah from --pull-never localhost/server)
    file=$(buildah mount "$container")$module
    [ "$(stat -c '%U %a' "$file")" = "root 755" ] || die "$module is $(stat -c '%U %a' "$file")"
    run localhost/server &
    for _ in {1..100}; do
        sleep 0.1
        answer=$(chroot "$root" "$1-cli" RL.THROTTLE user:1 15 30 60 1 2>/dev/null | paste -sd' ') || true
        [ -z "$answer" ] || break
    done
    [ "$answer" = "0 16 15 -1 2" ] || die "the server in the image answers: $answer"
    answer=$(chroot "$root" "$1-cli" CONFIG REWRITE)
    [[ $answer == *"Permission denied"* ]] || die "CONFIG REWRITE in the image answers: $answer"
    echo "ok: $answer"

    echo "--- server: healthy with the module, and only with it"
    mapfile -t command < <(inspect localhost/server '{{range .Docker.Config.Healthcheck.Test}}{{println .}}{{end}}' | grep .)
    [ "${command[0]}" = CMD-SHELL ] || die "the health check is: ${command[*]}"
    healthy || die "a server with the module is not healthy: ${command[*]}"
    chroot "$root" "$1-cli" CONFIG SET requirepass secret
    healthy || die "a server that asks for a password is not healthy"
    healthy --env REDISCLI_AUTH=secret || die "with its password a server is not healthy"
    chroot "$root" "$1-cli" -a secret --no-auth-warning SHUTDOWN NOSAVE
    wait
    ! healthy || die "without a server it is healthy"
    run localhost/base &
    for _ in {1..100}; do
        sleep 0.1
        [ "$(chroot "$root" "$1-cli" PING 2>/dev/null)" != PONG ] || break
    done
    ! healthy || die "without the module it is healthy"
    chroot "$root" "$1-cli" SHUTDOWN NOSAVE
    wait
    echo "ok: ${command[1]}"
}
inspect() { buildah inspect --type image --format "$2" "$1"; } # image, template
healthy() { # option...: what docker runs in the container every ten seconds
    buildah run "$@" "$container" -- /bin/sh -c "${command[1]}"
}
run() { # image option...: what a container of the image runs by itself
    local container command image=$1
    shift
    container=$(buildah from --pull-never "$image")
    mapfile -t command < <({
        inspect "$image" '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}'
        inspect "$image" '{{range .OCIv1.Config.Cmd}}{{println .}}{{end}}'
    } | grep .)
    buildah run "$@" "$container" -- "${command[@]}"
}

try_arm64() {
    local arm=$work/arm64
    [ -x "$arm/root/usr/bin/redis-check-rdb" ] || scripts/unpack-debian.sh "$arm/root" redis-tools:arm64+
    # The server goes by its name; the package has it as the tool that checks its files.
    ln -sf redis-check-rdb "$arm/root/usr/bin/redis-server"
    # The clock that tests hold is a library preloaded into the server, so it is of the server's kind.
    "$work/tools/bin/python" -m ziglang cc -target aarch64-linux-gnu.2.28 -shared -fPIC -O2 -o "$arm/clock.so" \
        tests/support/src/clock.c
    cat >"$arm/redis-server" <<END
#!/bin/sh
clock=\${LD_PRELOAD:+LD_PRELOAD=$arm/clock.so}
unset LD_PRELOAD
exec qemu-aarch64-static -L "$arm/root" \${clock:+-E "\$clock"} "$arm/root/usr/bin/redis-server" "\$@"
END
    chmod +x "$arm/redis-server"
    file_is_arm64 "$dist/libredis_ratelimit-linux-arm64.so"
    REDIS_SERVER=$arm/redis-server RATELIMIT_SO=$dist/libredis_ratelimit-linux-arm64.so RATELIMIT_TEST_SLOWNESS=5 \
        cargo test --no-fail-fast --test server -- docs:: effects:: every_command:: --test-threads=2
}
file_is_arm64() { readelf -h "$1" | grep -q AArch64 || die "$1 is not for arm64"; }

try_again() {
    local copy=$work/again
    [ -z "$(git status --porcelain)" ] || die "There are changes that are not committed: no commit can be built again."
    rm -rf "$copy"
    git clone --quiet . "$copy/another folder"
    git -C "$copy/another folder" checkout --quiet "$(git rev-parse HEAD)"
    env -u CARGO_TARGET_DIR PACKAGE_TOOLS="$work/tools" "$copy/another folder/scripts/package.sh" amd64 arm64
    diff "$dist/SHA256SUMS" "$copy/another folder/target/package/dist/SHA256SUMS"
    (cd "$copy/another folder/target/package/dist" && sha256sum --check "$dist/SHA256SUMS")
    rm -rf "$copy"
}

try_case() {
    case $1 in
    image-*) in_clean_root trixie try_image "${1#*-}" ;;
    arm64 | again) "try_$1" ;;
    *-source) in_clean_root "${1%-*}" try_source ;;
    *-*) in_clean_root "${1%-*}" try_debian "${1%-*}" "${1#*-}" ;;
    *) die "There is no case $1. There are: ${all[*]} bookworm-source trixie-source noble-source" ;;
    esac
}

try_all() {
    local name begin code result table='' status=0
    [ $# -gt 0 ] || set -- "${all[@]}"
    mkdir -p "$logs" "$roots"
    if printf '%s\n' "$@" | grep -qv -- '-source$'; then
        scripts/install-tools.sh debootstrap debian-archive-keyring dpkg-deb qemu-user buildah
        [ -n "${NO_BUILD:-}" ] || scripts/package.sh amd64 arm64
    else
        scripts/install-tools.sh debootstrap debian-archive-keyring
    fi
    for name in "$@"; do
        begin=$SECONDS
        echo "=== $name"
        # Not in a condition, where bash would go on after a failure.
        set +e
        (
            set -e
            try_case "$name"
        ) >"$logs/$name.log" 2>&1
        code=$?
        set -e
        if [ $code = 0 ]; then
            result=passed
        else
            result=FAILED
            status=1
            tail -n 15 "$logs/$name.log"
        fi
        table+=$(printf '%-16s %-7s %5ds' "$name" "$result" $((SECONDS - begin)))$'\n'
    done
    printf '\n%s' "$table"
    return $status
}

# A part of this script that runs in other namespaces.
if [ "${1:-}" = --call ]; then
    "${@:2}"
else
    try_all "$@"
fi
