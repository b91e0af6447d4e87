#!/usr/bin/env bash
# Builds the files of a release into target/package/dist, for each of the named targets:
#
#   scripts/package.sh [amd64] [arm64]     this machine's if none is named
#   scripts/package.sh --tools             only installs the tools that a build needs
#
# `make package` runs this, and so do check-package.sh and test-packages.sh.
#
# libredis_ratelimit-linux-TARGET.so             the module, stripped
# redis-ratelimit-VERSION-linux-TARGET.tar.gz    the module, licences, redis.conf.example, pages, examples and clients
# redis-ratelimit-VERSION-linux-TARGET.cdx.json  what is inside: a CycloneDX SBOM
# redis-ratelimit_VERSION-1_TARGET.deb           a package for Debian and Ubuntu: the module and the pages for operators
# Dockerfile redis.conf                          make images of the modules next to them
# SHA256SUMS                                     of all of them
#
# The same commit and the same rustc, which BUILD.txt in the archive names, give the same bytes in any folder. Files have the
# time of the commit, or SOURCE_DATE_EPOCH=. RUSTC= is the compiler. HOMEPAGE= is the address of the project for the .deb and
# the images, which otherwise name the README that the .deb installs. The build fails if a module needs a glibc above 2.28.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

glibc_floor=2.28

die() {
    printf '%s\n' "$@" >&2
    exit 1
}
step() { echo "=== $* ($SECONDS s)" >&2; }

source=$PWD
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/package"
work=$(cd "$target/package" && pwd)
dist=$work/dist
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)
if [ -n "$(git status --porcelain 2>/dev/null)" ]; then
    commit="$commit, with changes that are not committed"
    echo "Note: there are changes that are not committed; they are in the package." >&2
fi
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) ||
        die "This is no git checkout, so SOURCE_DATE_EPOCH must say when the source was made, in seconds since 1970."
fi
tag=$(git describe --tags --exact-match --match 'v*' 2>/dev/null || true)
[ -z "$tag" ] || [ "$tag" = "v$version" ] || die "This commit has the tag $tag, but Cargo.toml says $version."
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022
homepage=${HOMEPAGE:-file:///usr/share/doc/redis-ratelimit/README.md}
[[ $homepage =~ ^(https|file)://[^[:space:]|\&]+$ ]] || die "HOMEPAGE is no address that begins with https:// : $homepage"

triple_of() {
    case $1 in
    amd64) echo x86_64-unknown-linux-gnu ;;
    arm64) echo aarch64-unknown-linux-gnu ;;
    *) die "There is no target $1. There are: amd64 arm64" ;;
    esac
}
own_target() {
    case $(uname -m) in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    *) die "Packages are made for amd64 and arm64. On $(uname -m) use: make build" ;;
    esac
}

# Pinned, because another linker makes other bytes. They are kept in target/package/tools, or the folder PACKAGE_TOOLS.
install_pinned() {
    local tools=${PACKAGE_TOOLS:-$work/tools}
    if ! cmp -s packaging/requirements.txt "$tools/requirements.txt"; then
        step "fetching the linker, zig"
        python3 -m venv --clear "$tools"
        "$tools/bin/pip" install --quiet --disable-pip-version-check --requirement packaging/requirements.txt
        cp packaging/requirements.txt "$tools/"
    fi
    PATH=$tools/bin:$PATH
    export PATH ZIG_GLOBAL_CACHE_DIR=$work/zig CARGO_ZIGBUILD_CACHE_DIR=$work/zigbuild
}

compile() { # target triple rustc: prints the path of the module
    local triple=$2.$glibc_floor rustc=$3 sysroot commit_hash flags
    sysroot=$("$rustc" --print sysroot)
    commit_hash=$("$rustc" --version --verbose | sed -n 's/^commit-hash: //p')
    # No path of this machine gets into the module. The standard library's own is the one that rustc uses where its
    # source is not installed.
    flags=(
        -C strip=symbols
        "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
        "--remap-path-prefix=$sysroot/lib/rustlib/src/rust=/rustc/$commit_hash"
        "--remap-path-prefix=$work=/build"
        "--remap-path-prefix=$source=/redis-ratelimit"
    )
    # Not from a folder above the tools: zig would name its headers by relative paths, which build scripts cannot follow.
    mkdir -p "$work/build"
    (
        cd "$work/build"
        env -u RUSTFLAGS RATELIMIT_COMMIT="${commit/, with*/-modified}" RUSTC="$rustc" CARGO_TARGET_DIR="$work/build" \
            CARGO_INCREMENTAL=0 CARGO_ENCODED_RUSTFLAGS="$(join $'\x1f' "${flags[@]}")" \
            cargo zigbuild --profile dist --locked --lib --target "$triple" --manifest-path "$source/Cargo.toml" >&2
    )
    echo "$work/build/$2/dist/libredis_ratelimit.so"
}
join() {
    local IFS=$1
    shift
    echo "$*"
}

# Checks the requirements of the module, as the file itself states them.
check_requirements() { # target module
    local needed highest
    needed=$(readelf -d "$2" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    highest=$(readelf -V "$2" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1)
    [ -n "$highest" ] || die "$2 names no version of glibc."
    [ "$(printf '%s\n' "$highest" $glibc_floor | sort -V | tail -n 1)" = $glibc_floor ] ||
        die "$2 needs glibc $highest, and may need $glibc_floor at most."
    if grep -vE '^(libc|libm|libdl|libpthread|ld-linux-[a-z0-9-]+)\.so\.[0-9]+$' <<<"$needed"; then
        die "$2 needs a library that is not part of glibc."
    fi
    echo "$1: the newest symbol is of glibc $highest" >&2
    ! readelf -SW "$2" | grep -E ' \.(debug_|symtab)' || die "$2 is not stripped."
    for path in "$source" "$work" "${CARGO_HOME:-$HOME/.cargo}"; do
        ! grep -aqF "$path" "$2" || die "$2 contains the path $path."
    done
}

zig_version() { sed -n 's/^ziglang==//p' packaging/requirements.txt; }

same_times() { find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +; }

# Prints the links of pages to files that the folder lacks: the page and the link, separated by a space.
dead_links() { # folder
    local page link
    while IFS= read -r -d '' page; do
        while IFS= read -r link; do
            [ -e "$(dirname "$page")/$link" ] || echo "$page $link"
        done < <(grep -oE '\]\([^)# ]+' "$page" | cut -c 3- | grep -v '^https:')
    done < <(find "$1" -name '*.md' -print0)
}

check_links() { # folder
    local dead
    dead=$(dead_links "$1")
    [ -z "$dead" ] || die "The package has links to files that it has not:" "$dead"
}

# Adds the pages, examples and clients that are in the archive, without what pip, npm and running the examples left there.
# Git may be missing, so this reads .gitignore: its lines with a slash at the beginning name one place.
add_sources() { # folder
    cp LICENSE ./*.md redis.conf.example "$1/"
    tar --anchored --exclude-from=<(sed -n 's,^/\(.*[^/]\)/*$,\1,p' .gitignore) \
        --no-anchored --exclude-from=<(sed -n 's,^\([^#/].*[^/]\)/*$,\1,p' .gitignore clients/*/.gitignore) \
        -cf - clients docs examples | tar -C "$1" -xf -
    install -m 644 clients/typescript/wasm/engine.wasm "$1/clients/typescript/wasm/"
    install -m 644 clients/typescript/wasm/engine.wasm "$1/docs/playground/"
    check_links "$1"
}

# Adds the pages for those who run the server. Links to other pages become text.
add_pages() { # folder
    local page link
    mkdir -p "$1/examples"
    cp README.md SECURITY.md redis.conf.example "$1/"
    cp -R --parents docs/{benchmarks,choosing,commands,install,operations,redis-cell,servers}.md docs/pictures \
        examples/metrics "$1/"
    while read -r page link; do
        # The text of a link may go on in the next line.
        sed -z -i "s|\[\([^][]*\)\](${link//./\\.}\(#[^)]*\)\{0,1\})|\1|g" "$page"
    done < <(dead_links "$1")
    check_links "$1"
}

archive() { # target module name
    local root=$work/stage/$1/$3
    mkdir -p "$root"
    install -m 755 "$2" "$root/libredis_ratelimit.so"
    add_sources "$root"
    cp "$work/stage/$1/BUILD.txt" "$work/stage/$1/THIRD-PARTY.txt" "$root/"
    cp "$dist/$3.cdx.json" "$root/sbom.cdx.json"
    chmod -R u=rwX,go=rX "$root"
    tar --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        -C "$work/stage/$1" -cf - "$3" | gzip -9n >"$dist/$3.tar.gz"
}

debian_package() { # target module
    local root=$work/stage/$1/deb modules doc file
    modules=usr/lib/redis/modules
    doc=$root/usr/share/doc/redis-ratelimit
    mkdir -p "$root/DEBIAN" "$root/$modules" "$root/usr/lib/valkey/modules" "$doc"
    install -m 755 "$2" "$root/$modules/libredis_ratelimit.so"
    ln -s /$modules/libredis_ratelimit.so "$root/usr/lib/valkey/modules/libredis_ratelimit.so"
    # Debian keeps licences in one file.
    { cat packaging/debian/copyright LICENSE && printf '\n' && cat "$work/stage/$1/THIRD-PARTY.txt"; } >"$doc/copyright"
    ln -s copyright "$doc/LICENSE"
    add_pages "$doc"
    cp "$work/stage/$1/BUILD.txt" "$doc/"
    gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
    sed -e "s/@VERSION@/$version/; s/@DATE@/$(date --utc --date="@$SOURCE_DATE_EPOCH" '+%a, %d %b %Y %H:%M:%S +0000')/" \
        packaging/debian/changelog.in | gzip -9n >"$doc/changelog.Debian.gz"
    for file in postinst prerm; do install -m 755 packaging/debian/$file "$root/DEBIAN/$file"; done
    chmod -R u=rwX,go=rX "$root"
    sed -e "s/@VERSION@/$version/; s/@TARGET@/$1/; s/@GLIBC@/$glibc_floor/; s|@HOMEPAGE@|$homepage|" \
        -e "s/@SIZE@/$(du -k --apparent-size -s "$root/usr" | cut -f1)/" packaging/debian/control.in >"$root/DEBIAN/control"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    same_times "$root"
    dpkg-deb --root-owner-group -Zxz -b "$root" "$dist/redis-ratelimit_$version-1_$1.deb" >/dev/null
}

[ $# -gt 0 ] || set -- "$(own_target)"
[ "$1" = --tools ] || for name in "$@"; do triple_of "$name" >/dev/null; done
scripts/install-tools.sh cargo cc libclang python3-venv readelf dpkg-deb
install_pinned
[ "$1" != --tools ] || exit 0
mkdir -p "$dist"
rm -rf "$work/stage"
step "the engine of the TypeScript client"
scripts/build-engine.sh typescript

for name in "$@"; do
    triple=$(triple_of "$name")
    rustc=$(scripts/find-rustc.sh "$triple")
    step "$name: compiling, which takes some minutes the first time"
    module=$(compile "$name" "$triple" "$rustc")
    step "$name: looking at what the module needs of a system"
    check_requirements "$name" "$module"
    step "$name: packing"

    stem=redis-ratelimit-$version-linux-$name
    mkdir -p "$work/stage/$name"
    rm -f "$dist"/*"linux-$name".* "$dist"/*"_$name.deb"
    cat >"$work/stage/$name/BUILD.txt" <<END
redis-ratelimit $version for $triple
commit            $commit
SOURCE_DATE_EPOCH $SOURCE_DATE_EPOCH
compiler          $("$rustc" --version)
linker            zig $(zig_version) by cargo-zigbuild
C library         glibc $glibc_floor or later

Built by: make package TARGETS=$name${HOMEPAGE:+ HOMEPAGE=$HOMEPAGE}
END
    python3 packaging/sbom.py sbom "$triple" "$("$rustc" --version)" "$(zig_version)" "$module" >"$dist/$stem.cdx.json"
    python3 packaging/sbom.py licences "$triple" "$("$rustc" --version)" "$(zig_version)" \
        >"$work/stage/$name/THIRD-PARTY.txt"
    install -m 755 "$module" "$dist/libredis_ratelimit-linux-$name.so"
    archive "$name" "$module" "$stem"
    debian_package "$name" "$module"
done

sed -e "s/^ARG VERSION=.*/ARG VERSION=$version/; s/^ARG REVISION=.*/ARG REVISION=${commit%%,*}/" \
    -e "s|^ARG HOMEPAGE=.*|ARG HOMEPAGE=${HOMEPAGE:-unknown}|" packaging/Dockerfile >"$dist/Dockerfile"
cp packaging/redis.conf "$dist/redis.conf"
touch --date="@$SOURCE_DATE_EPOCH" "$dist/Dockerfile" "$dist/redis.conf"

(cd "$dist" && rm -f SHA256SUMS && sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS .)
echo "In $dist:"
cat "$dist/SHA256SUMS"
