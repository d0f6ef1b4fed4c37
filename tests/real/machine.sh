#!/bin/bash
# machine.sh NAME HOME TOOLS: the first process of a machine that is made of namespaces (machines.py enters them before): mounts that
# nobody else sees, then containerd, kubelet and kube-proxy as on any node. When this process ends, the kernel ends all the others,
# containers too: that is this machine's power switch. HOME keeps what a disk would.
set -euo pipefail
name=$1 home=$2 tools=$3
hostname "$name"
mkdir -p "$home/lib" "$home/log"
mount --bind "$home/lib" /var/lib
mount --bind "$home/log" /var/log
mount -t tmpfs -o mode=755 tmpfs /run
# The kubelet writes these where they differ, and they belong to the whole host: it is shown files that hold what it wants.
while read -r key value; do
    echo "$value" >"$home/sysctl.$key"
    mount --bind "$home/sysctl.$key" "/proc/sys/${key//.//}"
done <<WANTED
vm.overcommit_memory 1
vm.panic_on_oom 0
kernel.panic 10
kernel.panic_on_oops 1
kernel.keys.root_maxkeys 1000000
kernel.keys.root_maxbytes 25000000
WANTED
# The kubelet's mounts must reach the containers.
mount --make-rshared /
mkdir -p /var/lib/cellplane-volumes

"$tools/containerd" --config "$home/containerd.toml" >>"$home/containerd.log" 2>&1 &
containerd=$!
until ctr version >/dev/null 2>&1; do
    kill -0 $containerd || exit 1
    [ $SECONDS -lt 60 ] || { echo "containerd does not answer; see $home/containerd.log" >&2; exit 1; }
    sleep 0.1
done
while read -r archive; do
    ctr --namespace k8s.io images import "$archive" >>"$home/images.log" 2>&1
done <"$home/images"

"$tools/kubelet" --config="$home/kubelet.yaml" --kubeconfig="$home/kubelet.kubeconfig" --hostname-override="$name" \
    --node-ip="$(cat "$home/address")" --node-labels="topology.kubernetes.io/zone=$name" >>"$home/kubelet.log" 2>&1 &
"$tools/kube-proxy" --config="$home/proxy.yaml" >>"$home/kube-proxy.log" 2>&1 &
# Also reaps what containers leave behind.
wait
