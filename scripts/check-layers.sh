#!/usr/bin/env bash
# Checks that the layers of src/ point one way: a file may import its own layer and lower ones. From low to high:
#
#   redis
#   shared          what several of the next use: the files reply, config, environment and stats of src/
#   state
#   keys            the keys as the commands use them, and what is noted of calls that have ended
#   blocking
#   server_call     src/server_call.rs, the calls of the server as the commands see them
#   module
#   lib             src/lib.rs
#
# The engine and the commands are crates of their own (crates/), which the compiler keeps below all of them.
#
# Prints FILE:LINE and the import that points up, and fails. A layer that does not exist is not an error.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
export LC_ALL=C

mapfile -t files < <(find src -name '*.rs' | sort)
awk '
function layer(name) {
    if (name ~ /^(reply|config|environment|stats)$/) return "shared"
    return name
}
# Whether a file of the layer `from` may import the layer `to`.
function may(from, to) {
    if (from == to) return 1
    if (!(to in rank)) return 0
    # Where the tests count allocations, they call everything.
    if (from == "tests") return 1
    return rank[from] > rank[to]
}
# The names after `crate::` in a text, also those in braces; to `names`, and how many there are.
function imported(text, names,    count, rest, depth, at, character, word, top) {
    count = 0
    while (match(text, /(^|[^A-Za-z0-9_])(crate|\$crate)::/)) {
        text = substr(text, RSTART + RLENGTH)
        if (substr(text, 1, 1) != "{") {
            match(text, /^[A-Za-z0-9_]*/)
            names[++count] = substr(text, 1, RLENGTH)
            continue
        }
        depth = 0; top = 1; word = ""
        for (at = 1; at <= length(text); at++) {
            character = substr(text, at, 1)
            if (character == "{") { if (++depth == 1) top = 1; continue }
            if (character == "}") { if (--depth == 0) break; continue }
            if (depth != 1) continue
            if (character == ",") { top = 1; continue }
            if (top && match(substr(text, at), /^[A-Za-z0-9_]+/)) {
                names[++count] = substr(text, at, RLENGTH)
                at += RLENGTH - 1
                top = 0
            }
        }
        text = substr(text, at + 1)
    }
    return count
}
function check(text, line,    count, at, to) {
    count = imported(text, names)
    for (at = 1; at <= count; at++) {
        to = layer(names[at])
        # What stands in lib.rs itself is above everything.
        if (!(to in rank)) to = "lib"
        if (!may(own, to)) {
            sub(/^[ \t]+/, "", text)
            printf "%s:%d: the layer %s must not import %s: %s\n", FILENAME, line, own, names[at], text
            wrong++
        }
    }
}
BEGIN {
    rank["redis"] = 1; rank["shared"] = 2; rank["state"] = 3; rank["keys"] = 4; rank["blocking"] = 5
    rank["server_call"] = 6; rank["module"] = 7; rank["lib"] = 8; rank["tests"] = 9
}
FNR == 1 {
    own = FILENAME
    sub(/^src\//, "", own)
    sub(/\.rs$/, "", own)
    sub(/\/.*/, "", own)
    own = layer(own)
    if (!(own in rank)) {
        printf "%s:1: %s is in no layer of scripts/check-layers.sh\n", FILENAME, own
        wrong++
    }
    pending = ""
}
{
    sub(/\/\/.*/, "")
    # At the left margin the way up is known.
    if (FILENAME ~ /^src\/([^\/]*|[^\/]*\/mod)\.rs$/) sub(/^(pub )?use super::/, "use crate::")
    if (FILENAME ~ /^src\/[^\/]*\/[^\/]*\.rs$/) sub(/^(pub )?use super::super::/, "use crate::")
    if (pending != "") {
        pending = pending $0
        if ($0 ~ /;/) { check(pending, begin); pending = "" }
    } else if ($0 ~ /^[ \t]*(pub(\([a-z]+\))? )?use .*\{[^;]*$/) {
        pending = $0
        begin = FNR
    } else {
        check($0, FNR)
    }
}
# A function of the module API is called by way of its list, which is checked on load.
FILENAME ~ /^src\// && FILENAME !~ /^src\/redis\/(api|fake)\.rs$/ && /raw::RedisModule_/ {
    printf "%s:%d: a function of the module API must be called with api! or optional!\n", FILENAME, FNR
    wrong++
}
END { exit wrong > 0 }
' "${files[@]}"
