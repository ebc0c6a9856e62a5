#!/bin/bash
# Makes the source tarball and the archive for PGXN from a commit; the same commit gives the same
# bytes.
#
# usage: tools/make-dist.sh [DIRECTORY [COMMIT]]
set -euo pipefail
# shellcheck source=tools/lib.sh
. "$(dirname "$0")/lib.sh"

tree=$(cd "$(dirname "$0")/.." && pwd -P)
to=$(realpath -m "${1:-$tree/build/dist}")
commit=${2:-HEAD}
# The clone may belong to another user.
git=(git -c "safe.directory=$tree" -C "$tree")

"${git[@]}" rev-parse --verify -q "$commit^{commit}" >/dev/null ||
	die "archives are made from a commit of git, and there is none in $tree"
if [ "$commit" = HEAD ] && [ -n "$("${git[@]}" status --porcelain)" ]; then
	say "warning: the archives have the last commit, without the changes after it"
fi
version=$("${git[@]}" show "$commit:weft.control" | sed -n "s/^default_version = '\(.*\)'/\1/p")
mkdir -p "$to"
for format in tar.gz zip; do
	# The times in a zip file are local.
	TZ=UTC "${git[@]}" -c tar.umask=0022 -c "tar.tar.gz.command=gzip -9n" archive --format="$format" \
		--prefix="weft-$version/" -o "$to/weft-$version.$format" "$commit"
	echo "$to/weft-$version.$format"
done
