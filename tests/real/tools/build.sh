#!/bin/bash
# build.sh NAME...: builds real Kubernetes and etcd programs from their Go modules into the tool cache and prints that folder.
# The cache lies outside the clone (CELLPLANE_CACHE, default ~/.cache/cellplane) and is keyed by go.sum, so a new version builds anew.
# k8s.io/kubernetes replaces its staging modules; go.mod here replaces each with the published one of the same release.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
key=$(sha256sum "$here/go.sum" | cut -c1-12)
out=${CELLPLANE_CACHE:-$HOME/.cache/cellplane}/tools/$key
mkdir -p "$out"
exec 9>"$out/.lock"
flock 9
release=$(awk '$1 == "require" && $2 == "k8s.io/kubernetes" {print $3}' "$here/go.mod")
minor=$(echo "$release" | cut -d. -f2)
set_version() { printf -- '-X k8s.io/component-base/version.%s=%s ' "$1" "$2"; }
# Without a version the API server reports one that clients cannot parse.
flags="-s -w $(set_version gitVersion "$release")$(set_version gitMajor 1)$(set_version gitMinor "$minor")"
for name in "$@"; do
    if [ -x "$out/$name" ]; then continue; fi
    case $name in
        etcd) package=go.etcd.io/etcd/server/v3 ;;
        etcdctl) package=go.etcd.io/etcd/etcdctl/v3 ;;
        *) package=k8s.io/kubernetes/cmd/$name ;;
    esac
    echo "building $name $release (cached in $out from then on)" >&2
    (cd "$here" && CGO_ENABLED=0 GOFLAGS=-mod=mod go build -o "$out/.$name.new" -ldflags "$flags" "$package")
    mv "$out/.$name.new" "$out/$name"
done
echo "$out"
