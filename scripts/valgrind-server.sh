#!/usr/bin/env bash
# Runs a server under valgrind's memcheck, as the REDIS_SERVER of valgrind.sh. Findings go to a file in the directory
# VALGRIND_LOGS; RATELIMIT_VALGRIND_SERVER= is the server (redis-server).
set -euo pipefail

server=${RATELIMIT_VALGRIND_SERVER:-redis-server}
[ "${1:-}" != --version ] || exec "$server" --version
# The server's own allocator is replaced by memcheck's, which knows where a block begins and ends.
exec valgrind --tool=memcheck --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
    --num-callers=40 --soname-synonyms='somalloc=*jemalloc*' --child-silent-after-fork=yes \
    --suppressions="$(dirname "$0")/valgrind.supp" \
    --xml=yes --xml-file="${VALGRIND_LOGS:?}/%p.xml" "$server" "$@"
