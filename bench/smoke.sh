#!/bin/bash
# Tests whether loads, systems and options of the benchmarks work, in tiny runs, which take about a
# quarter of an hour on a quiet machine.
#
# usage: bench/smoke.sh [PYTEST ARGUMENT]...    (such as -k lag)
set -euo pipefail
bench=$(cd "$(dirname "$0")" && pwd -P)
exec "$bench/../tools/setup.sh" release pytest -v bench/smoke "$@"
