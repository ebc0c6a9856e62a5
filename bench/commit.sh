# shellcheck shell=bash
# Sourced by the scripts that start benchmarks, which run in a copy without history.

# Prints the commit of a tree, and "dirty" behind it if files differ from it or are not in it;
# nothing if the tree has no history.  Results of benchmarks make no tree dirty.
commit_of()
{
	local git=(git -c safe.directory='*' -C "$1") commit changes
	commit=$("${git[@]}" rev-parse HEAD 2>/dev/null) || return 0
	changes=$("${git[@]}" status --porcelain -- . ':!bench/results') || changes=unknown
	printf '%s%s\n' "$commit" "${changes:+ dirty}"
}
