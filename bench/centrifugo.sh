#!/bin/sh
# Builds the peer of `cell-bench sockets --centrifugo` with Go, into a folder outside the repository, and prints where it is.
set -eu
folder="${CELLPLANE_CACHE:-$HOME/.cache/cellplane}/centrifugo-6.9.1"
[ -x "$folder/centrifugo" ] || GOBIN="$folder" go install github.com/centrifugal/centrifugo/v6@v6.9.1
echo "$folder/centrifugo"
