# shellcheck shell=bash
# Sourced by the scripts in this folder: locations and common functions.

# "set -e" must apply within $(...), too.
shopt -s inherit_errexit

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# All clones of a user share the servers and the Python environment; therefore they
# are outside the tree.
# shellcheck disable=SC2034 # used by those that source this
if [ -n "${WEFT_CACHE:-}" ]; then
	cache=$(realpath -m "$WEFT_CACHE")
elif [ "$(id -u)" = 0 ]; then
	cache=/var/cache/weft
else
	cache=${XDG_CACHE_HOME:-$HOME/.cache}/weft
fi

# Runs one build step, and shows the output only if it fails.
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

# Makes a directory a copy of a source tree, with further options of rsync.  Modification times are not
# preserved, so that a changed file is newer than its object.  .gitignore excludes objects and their
# .d files from being copied, and from removal.
copy_source()
{
	local from=$1 to=$2
	shift 2
	rsync -rlp --checksum --delete "$@" --exclude=.git --exclude-from="$from/.gitignore" "$from/" "$to/"
}

# Identifies a build of a server.
server_origin() { echo "$1 $(stat -c %Y "$("$1" --bindir)/postgres")"; }

# Is there a complete copy of a server in a directory?
has_copy() { [ "$(server_origin "$1")" = "$(cat "$2/.origin" 2>/dev/null)" ]; }

# PostgreSQL finds its files relative to its programs, so a copy of the directories of the server ORIGINAL, a
# pg_config, is a server of its own below DIRECTORY: Weft can be installed there without touching the
# original or disturbing other clones.
copy_server()
{
	local original=$1 to=$2 dir
	rm -rf "$to"
	for dir in "$("$original" --bindir)" "$("$original" --sharedir)" "$("$original" --pkglibdir)"; do
		mkdir -p "$to$dir"
		# links save time and space, where both are the same user's
		cp -al "$dir/." "$to$dir/" 2>/dev/null || cp -a "$dir/." "$to$dir/"
	done
	server_origin "$original" >"$to/.origin"
}

# Writes an apt sources list for source packages, from the machine's own archives:
# of the machine's release, and of the releases that follow it.  Addresses and keys
# are taken from the machine's configuration.  With "experimental" as the second argument,
# Debian's suite of that name is added: it has what is not yet meant for a release, such as
# the next major version of the server.
write_sources()
{
	local to=$1 experimental=${2:-} later file ID='' VERSION_CODENAME=''
	. /etc/os-release
	case $ID in
		debian) later="trixie forky sid $experimental" ;;
		ubuntu) later="plucky questing resolute" ;;
		*) later="" ;;
	esac
	later=$(tr ' ' '\n' <<<"$later" | grep -vx "$VERSION_CODENAME" | tr '\n' ' ' || true)

	for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
		[ -r "$file" ] || continue
		awk -v own="$VERSION_CODENAME" -v later="$later" '
			$1 != "deb" { next }
			{
				$1 = "deb-src"; print
				for (i = 2; i <= NF && $i != own; i++);
				if (i <= NF)
					for (n = split(later, suite); n > 0; n--) { $i = suite[n]; print }
			}' "$file" >>"$to/sources.list"
	done
	for file in /etc/apt/sources.list.d/*.sources; do
		[ -r "$file" ] || continue
		awk -v own="$VERSION_CODENAME" -v later="$later" '
			function stanza(text) {
				gsub(/(^|\n)Types:[^\n]*/, "\nTypes: deb-src", text)
				sub(/^\n/, "", text)
				print text "\n"
			}
			BEGIN { RS = "" }
			{
				stanza($0)
				if (match($0, /(^|\n)Suites:[^\n]*/) &&
					(substr($0, RSTART, RLENGTH) " ") ~ ("[ \t]" own "[ \t]")) {
					sub(/(^|\n)Suites:[^\n]*/, "\nSuites: " later)
					stanza($0)
				}
			}' "$file" >>"$to/sources.list.d/$(basename "$file")"
	done
}

# Prints the addresses of the archives from which this machine's own release of Debian is installed.
archives()
{
	local file ID='' VERSION_CODENAME=''
	. /etc/os-release
	[ "$ID" = debian ] || return 0

	for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
		[ -r "$file" ] || continue
		awk -v own="$VERSION_CODENAME" '
			$1 == "deb" && sub(/^deb +(\[[^]]*\] +)?/, "") && $2 == own { print $1 }' "$file"
	done
	for file in /etc/apt/sources.list.d/*.sources; do
		[ -r "$file" ] || continue
		awk -v own="$VERSION_CODENAME" '
			BEGIN { RS = ""; FS = "\n" }
			{
				types = suites = uris = ""
				for (i = 1; i <= NF; i++) {
					if (sub(/^Types:/, "", $i)) types = $i " "
					else if (sub(/^Suites:/, "", $i)) suites = $i " "
					else if (sub(/^URIs:/, "", $i)) uris = $i
				}
				if ((" " types) ~ /[ \t]deb[ \t]/ && (" " suites) ~ ("[ \t]" own "[ \t]"))
					print uris
			}' "$file"
	done
}
