#!/bin/bash
# Builds docs/ into a site that can be searched, in build/site.  A link to nothing, or a page
# that no list has, is an error.
set -euo pipefail
# shellcheck source=tools/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

python=$(command -v /usr/bin/python3 || command -v python3)
hash=$( { "$python" --version; cat tools/requirements-docs.txt; } | sha256sum | cut -c1-8)
venv=$cache/docs-$hash
if [ ! -e "$venv" ]; then
	say "installing the Python packages of tools/requirements-docs.txt in $venv"
	mkdir -p "$cache"
	new=$(mktemp -d "$cache/docs.XXXXXX")
	chmod 755 "$new"
	quietly "$python" -m venv "$new" || die "python3 -m venv failed (see above)"
	quietly "$new/bin/python" -m pip install -r tools/requirements-docs.txt || die "pip failed (see above)"
	# complete, or not there; another build may have been faster
	mv -T "$new" "$venv" 2>/dev/null || rm -rf "$new"
fi

rm -rf build/site
"$venv/bin/python" -m sphinx -b html -c docs -d build/doctrees -W --keep-going -q . build/site
# The first page is in a folder, so that links between documents are those of the source tree.
echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' >build/site/index.html
echo "built: $PWD/build/site/index.html"
