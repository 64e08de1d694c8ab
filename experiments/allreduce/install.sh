#!/bin/sh
# Installs what the network lab needs and this machine lacks (Debian, Ubuntu): ip, tc, iperf3.
set -eu
PATH="$PATH:/usr/sbin:/sbin"
packages=""
command -v ip >/dev/null && command -v tc >/dev/null || packages="$packages iproute2"
command -v iperf3 >/dev/null || packages="$packages iperf3"
if [ -z "$packages" ]; then
    echo "ip, tc and iperf3 are installed."
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "run as root: sudo sh $0" >&2
    exit 1
fi
command -v apt-get >/dev/null || { echo "no apt-get here; install:$packages" >&2; exit 1; }
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# iperf3 asks whether to run as a daemon; it does not.
apt-get install -y -qq --no-install-recommends $packages
