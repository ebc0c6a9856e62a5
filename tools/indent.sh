#!/bin/bash
# Prints a patch that formats the C, Perl and Python sources.  "make indent" starts
# it through setup.sh, in the copy of the tree.
set -euo pipefail

source=$("$(dirname "$0")/get-server.sh" "$PG_MAJOR" source)
formatted=$(mktemp -d)
trap 'rm -rf "$formatted"' EXIT
cp -a . "$formatted/b"
cp -a . "$formatted/a"
cd "$formatted/b"

# The list of typedefs contains Weft's; the server's are in its source.
find src test -name '*.[ch]' -exec sed -nE \
	-e 's/^typedef (struct|enum|union) (\w+)$/\2/p' \
	-e 's/^typedef .*\W(\w+);$/\1/p' -e 's/^\} (\w+);$/\1/p' \
	-e 's/^typedef .*\(\*(\w+)\) ?\(.*\);$/\1/p' {} + |
	LC_ALL=C sort -u >tools/typedefs.list
sort -u tools/typedefs.list "$source/src/tools/pgindent/typedefs.list" >"$formatted/typedefs.list"

{
	find src test -name '*.[ch]' -print0 | xargs -0r "$source/src/tools/pgindent/pgindent" \
		--indent="$(dirname "$PG_CONFIG")/pg_bsd_indent" --typedefs="$formatted/typedefs.list"
	find test -name '*.p[lm]' -print0 | xargs -0r perltidy \
		--profile="$source/src/tools/pgindent/perltidyrc"
	ruff format --quiet --no-cache .
} >&2
cd ..
diff -ruN a b || [ $? = 1 ]
