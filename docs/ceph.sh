#!/bin/bash
# Tries the commands on a volume in a Ceph RBD image, with power cuts. Usage: docs/ceph.sh [EXTANT]
#
# It makes a cluster of one monitor, one manager and one OSD in a temporary folder, which listens on
# the loopback interface only, and removes it at the end. Needs (Debian 12): ceph-mon ceph-osd ceph-mgr
# ceph-common qemu-utils qemu-block-extra libnbd-bin e2fsprogs uuid-runtime.
set -euo pipefail
extant=$(realpath "${1:-$(dirname "$0")/../target/release/extant}")
for program in ceph-mon ceph-osd ceph-mgr rbd qemu-nbd nbdinfo e2fsck uuidgen; do
    command -v "$program" >/dev/null || { echo "docs/ceph.sh: $program is missing"; exit 77; }
done
dir=$(mktemp -d) port=${PORT:-16789}
say() { printf '%6.1f s  %s\n' "$(($(date +%s%N) / 1000000 - begun))e-3" "$1"; }
begun=$(($(date +%s%N) / 1000000))
end() {
    code=$?
    for pid in "$dir"/*.pid; do [ -e "$pid" ] && kill -9 "$(cat "$pid")" 2>/dev/null || true; done
    [ $code = 0 ] || tail -n 20 "$dir"/*.log "$dir"/log/*.log 2>/dev/null || true
    rm -rf "$dir"
    exit $code
}
trap end EXIT

cluster() {
    mkdir -p "$dir"/{mon,osd0,mgr,log}
    local fsid uuid
    fsid=$(uuidgen) uuid=$(uuidgen)
    cat >"$dir/ceph.conf" <<CONF
[global]
fsid = $fsid
mon host = 127.0.0.1:$port
mon initial members = a
public addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd crush chooseleaf type = 0
osd objectstore = bluestore
bluestore block size = 8589934592
osd memory target = 1073741824
log file = $dir/log/\$name.log
pid file = $dir/\$name.pid
admin socket = $dir/\$name.asok
run dir = $dir
ms bind ipv6 = false
ms bind msgr2 = false
[mon.a]
host = localhost
mon data = $dir/mon
mon addr = 127.0.0.1:$port
[osd.0]
osd data = $dir/osd0
[mgr.x]
mgr data = $dir/mgr
CONF
    export CEPH_CONF=$dir/ceph.conf
    monmaptool --create --fsid "$fsid" --addv a "[v1:127.0.0.1:$port]" "$dir/monmap" >/dev/null
    {
        ceph-mon --mkfs -i a --monmap "$dir/monmap" && ceph-mon -i a && ceph-mgr -i x
        ceph osd new "$uuid"
        ceph-osd -i 0 --mkfs --osd-uuid "$uuid"
        ceph-osd -i 0
        ceph osd pool create rbd 8 8
    } >"$dir/start.log" 2>&1
    rbd pool init rbd
}

# Serves the image; no writes are kept back, so that a flush reaches the OSD.
serve() {
    rm -f "$dir/nbd.sock"
    qemu-nbd -f raw -x vol -k "$dir/nbd.sock" --persistent --cache=none --aio=threads --discard=unmap --fork \
        --pid-file="$dir/nbd.pid" "rbd:rbd/vol:conf=$CEPH_CONF"
}

# What Ceph has of the image is a sound volume.
sound() {
    rm -f "$dir/out.img"
    rbd export --no-progress rbd/vol "$dir/out.img" 2>>"$dir/start.log"
    e2fsck -fn "$dir/out.img" >"$dir/fsck.log" 2>&1
}

cluster
say "a cluster is up"
rbd create --size 512 rbd/vol
serve
url="nbd+unix:///vol?socket=$dir/nbd.sock"

mkdir -p "$dir/tree/etc"
for n in $(seq 500); do head -c 2000 /dev/urandom >"$dir/tree/etc/$n"; done
head -c 32M /dev/urandom >"$dir/tree/large"

"$extant" -q mkfs -L ceph "$url"
if "$extant" -q build "$dir/tree" -o "$url" 2>"$dir/refused.log"; then exit 1; fi
grep -q 'holds an ext4 volume labelled "ceph"' "$dir/refused.log"
"$extant" -q build "$dir/tree" -o "$url" --force --discard
say "500 files and 32 MiB are built into the image"
"$extant" -q put -r "$dir/tree" "$url:/copy"
"$extant" -q edit "$url" <<<$'mkdir /new\nput /etc/hostname /new/hostname\nchmod 600 /new/hostname'
"$extant" cat "$url:/copy/large" | cmp - "$dir/tree/large"
"$extant" -q cp "$url:/copy" "$dir/back"
diff -r "$dir/tree" "$dir/back"
"$extant" -q diff "$url:/etc" "$dir/tree/etc"
"$extant" -q check "$url"
sound
say "it is read, changed and checked"

# The export server dies while files are put; what was synced before is there, and the volume recovers.
"$extant" -q put -r "$dir/tree/etc" "$url:/under-load" 2>"$dir/killed.log" &
sleep 0.2
kill -9 "$(cat "$dir/nbd.pid")"
serve
wait $! || true
"$extant" -q recover "$url"
"$extant" cat "$url:/copy/large" | cmp - "$dir/tree/large"
sound
say "the export server was killed, and the volume recovers"

# So does the OSD. Clients wait until it is back.
"$extant" -q put -r "$dir/tree/etc" "$url:/again" &
sleep 0.2
kill -9 "$(cat "$dir/osd.0.pid")"
ceph-osd -i 0 >>"$dir/start.log" 2>&1
wait $!
"$extant" -q cp "$url:/again" "$dir/again"
diff -r "$dir/tree/etc" "$dir/again"
"$extant" -q check "$url"
sound
say "the OSD was killed, and nothing is lost"
