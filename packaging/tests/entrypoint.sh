#!/bin/sh
# The entrypoint of the base image that the Dockerfile is tried on: options or a configuration file alone are given to the
# server, as the official images of Redis and Valkey do.
set -e
case $1 in -* | *.conf) set -- "$SERVER" "$@" ;; esac
exec "$@"
