#!/bin/sh
# Runs the tests of this project; exit code 0 means that all passed.
cd "$(dirname "$0")" || exit 1
exec python3 -B -m unittest -q test_splitbill
