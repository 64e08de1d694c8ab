#!/bin/sh
# Makes the environments of the peers that the all-reduce benchmark compares with.
#   sh experiments/allreduce/peers/install.sh              both
#   sh experiments/allreduce/peers/install.sh gloo         PyTorch only
#   sh experiments/allreduce/peers/install.sh horovod      Horovod (TensorFlow 2.15) only
#   sh experiments/allreduce/peers/install.sh --into=DIR   elsewhere than .peers/ of the clone;
#                                                          the benchmark then needs TFSCALE_PEERS=DIR
# Each peer gets a virtual environment of its own: their versions fit neither each other nor ours.
# PYTHON names the interpreter (default python3.11). TORCH names another release of PyTorch; any
# build does, and the CPU-only one (a tenth of the size) is taken where pip's index offers it.
set -eu
root="$(cd "$(dirname "$0")/../../.." && pwd)"
into="${TFSCALE_PEERS:-$root/.peers}"
peers=""
for argument in "$@"; do
    case "$argument" in
        gloo | horovod) peers="$peers $argument" ;;
        --into=?*) into="${argument#--into=}" ;;
        -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "install.sh: unknown argument '$argument'; use [gloo] [horovod] [--into=DIR]" >&2
           exit 2 ;;
    esac
done
[ -n "$peers" ] || peers="gloo horovod"

PYTHON="${PYTHON:-python3.11}"
command -v "$PYTHON" >/dev/null || {
    echo "install.sh: no interpreter '$PYTHON'; set PYTHON to a Python 3.11" >&2
    exit 1
}

# Runs a command with its output in a log; says where it stopped when it fails.
step() {
    what="$1"
    shift
    echo "$peer: $what ..."
    "$@" >>"$log" 2>&1 || {
        tail -n 25 "$log" >&2
        echo "install.sh: $peer: '$what' failed (above: the end of $log). The benchmark runs" \
            "without this peer; remove $folder to start again" >&2
        exit 1
    }
}

install_gloo() {
    step "installing PyTorch" "$python" -m pip install "torch==${TORCH:-2.13.0}" "numpy<3"
    step "checking" "$python" -c "import torch.distributed as d; assert d.is_gloo_available()"
}

install_horovod() {
    # Horovod is compiled against the TensorFlow that it finds, so that comes first and pip must
    # not build in isolation. 2.15 is the last release whose headers Horovod 0.28.1 fits; its
    # setup.py needs pkg_resources, which newer setuptools dropped.
    for tool in cmake c++; do
        command -v "$tool" >/dev/null || {
            echo "install.sh: horovod is compiled and needs '$tool'; install CMake and a C++" \
                "compiler (Debian: apt-get install cmake g++)" >&2
            exit 1
        }
    done
    step "installing TensorFlow 2.15" "$python" -m pip install "tensorflow-cpu==2.15.1" \
        "setuptools<70" wheel packaging cloudpickle psutil pyyaml cffi
    step "compiling Horovod (some minutes)" env HOROVOD_WITH_TENSORFLOW=1 \
        HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_MPI=1 \
        HOROVOD_WITH_GLOO=1 "$python" -m pip install --no-build-isolation "horovod==0.28.1"
    step "checking" "$python" -c "import horovod.tensorflow as h; assert h.gloo_built()"
}

for peer in $peers; do
    folder="$into/$peer"
    python="$folder/bin/python"
    log="$into/$peer.log"
    if [ -f "$folder/complete" ]; then
        echo "$peer: already in $folder"
        continue
    fi
    mkdir -p "$into"
    : >"$log"
    step "making an environment in $folder" "$PYTHON" -m venv --clear "$folder"
    "install_$peer"
    touch "$folder/complete" # Without it the benchmark takes a half-made environment for none.
    echo "$peer: ready in $folder"
done
