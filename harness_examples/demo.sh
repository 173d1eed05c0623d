#!/bin/sh
# One real turn on the embedded demo model, in a temporary copy of the sample repository.
# Nothing outside the temporary directory is read or written; no key and no network is needed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/peen-demo.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp -R "$here/sample-repo" "$work/repo"

for name in $(env | sed -n 's/^\(PEEN_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
export PEEN_CONFIG_DIR="$work/config" PEEN_STATE_DIR="$work/state" PEEN_WORKSPACE_ROOT="$work"
export PEEN_UPSTREAMS='[{"name":"scripted","type":"scripted"}]'

echo "The request:"
sed 's/^/    /' "$here/demo-prompt.txt"
echo
echo "The turn, as every client sees it:"
peen exec --stream-json -w "$work/repo" - < "$here/demo-prompt.txt" | python3 "$here/show_turn.py"

echo
echo "What it changed in the repository:"
diff -u "$here/sample-repo/splitbill.py" "$work/repo/splitbill.py" | sed 's/^/    /' || true

cat <<'TXT'

Start the daemon with     peen run
then, in any directory,   peen exec "list"
and look at it with       peen session list
The daemon answers on     http://127.0.0.1:8080/api/v1/sessions
TXT
