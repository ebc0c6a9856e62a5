# shellcheck shell=bash
# Sourced by the scripts in this folder: where things lie, and who does what.

# "set -e" is to hold within $(...) too.
shopt -s inherit_errexit

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# Servers and the Python environment serve all clones of a user, so they lie
# outside the tree.
# shellcheck disable=SC2034 # used by those that source this
if [ -n "${WEFT_CACHE:-}" ]; then
	cache=$(realpath -m "$WEFT_CACHE")
elif [ "$(id -u)" = 0 ]; then
	cache=/var/cache/weft
else
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/weft
fi

# Runs one build step; what the tools say is of interest only if they fail.
quietly()
{
	local log
	log=$(mktemp)
	if ! "$@" >"$log" 2>&1 </dev/null; then
		tail -n 40 "$log" >&2
		rm -f "$log"
		return 1
	fi
	rm -f "$log"
}
