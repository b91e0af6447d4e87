#!/usr/bin/env bash
# Downloads packages of Debian and unpacks them into a folder. Installs nothing but debian-archive-keyring:
#
#   scripts/unpack-debian.sh FOLDER PACKAGE:ARCHITECTURE[/SUITE][+] ...
#
# find-rustc.sh, fetch-servers.sh and test-packages.sh use this. A + adds the libraries that the package needs, including
# libc for another architecture or suite. Suite and mirror are those of the host if it is Debian, otherwise bookworm and
# DEBIAN_MIRROR=. SUITE= names other suites. Fails, and says why, if something is missing.
set -euo pipefail

die() {
    printf '%s\n' "$@" >&2
    exit 1
}
quietly() { "$@" >"$draft/log" 2>&1 || die "Debian's packages could not be fetched: $(tail -n 1 "$draft/log")"; }

folder=$1
shift
command -v apt-get >/dev/null || die "There is no apt-get here, so no packages of Debian."
own=$(dpkg --print-architecture)
draft=$(mktemp -d)
trap 'rm -rf "$draft"' EXIT
mkdir -p "$draft/lists/partial" "$draft/cache/archives/partial" "$draft/debs"
: >"$draft/status"

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
"$(dirname "$0")/install-tools.sh" debian-archive-keyring >&2
# Only Debian's own sources, as the host has them: other repositories may not know the other architecture.
# shellcheck disable=SC2016
apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Origin: Debian' | sort -u |
    sed "s,.*,deb [signed-by=$keyring] & main," >"$draft/sources.list"
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | head -n 1)
mirror=${mirror:-${DEBIAN_MIRROR:-http://deb.debian.org/debian}}
if [ -n "${SUITE:-}" ] || ! [ -s "$draft/sources.list" ]; then
    for suite in ${SUITE:-bookworm}; do
        echo "deb [signed-by=$keyring] $mirror $suite main"
    done >"$draft/sources.list"
fi
options=(-q -o APT::Architecture="$own" -o APT::Architectures::="$own" -o APT::Architectures::=amd64
    -o APT::Architectures::=arm64 -o Dir::Etc::sourcelist="$draft/sources.list" -o Dir::Etc::sourceparts=-
    -o Dir::State="$draft" -o Dir::State::lists="$draft/lists" -o Dir::State::status="$draft/status"
    -o Dir::Cache="$draft/cache" -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none -o Acquire::Retries=2)
quietly apt-get "${options[@]}" update

libraries_of() { # package architecture
    apt-cache "${options[@]}" depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
        --no-enhances "$1:$2" | grep -oE '^(lib|lua|zlib)[^ <]*$' | sed "s/:$2\$//" | grep -vE -- ':|-(common|data)$' |
        sort -u |
        if [ "$2" = "$own" ] && [ -z "${SUITE:-}" ]; then grep -vE '^(libc6|libcrypt1|libgcc-s1)$'; else cat; fi |
        sed "s/\$/:$2/"
}

wanted=()
for package in "$@"; do
    wanted+=("${package%+}")
    if [[ $package == *+ ]]; then
        package=${package%+}
        architecture=${package#*:}
        mapfile -t libraries < <(libraries_of "${package%:*}" "${architecture%/*}")
        wanted+=("${libraries[@]}")
    fi
done
cd "$draft/debs"
quietly apt-get "${options[@]}" download "${wanted[@]}"
rm -rf "$folder"
mkdir -p "$folder"
for deb in *.deb; do quietly dpkg -x "$deb" "$folder"; done
