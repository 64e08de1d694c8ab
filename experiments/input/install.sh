#!/bin/sh
# Makes the environments of the peers that the input benchmark compares with.
#   sh experiments/input/install.sh                        all but ffcv
#   sh experiments/input/install.sh dali torchvision       these only
#   sh experiments/input/install.sh --into=DIR             elsewhere than .peers/ of the clone;
#                                                          the benchmark then needs TFSCALE_PEERS=DIR
# Peers: dali torchvision grain simplejpeg ffcv. Each gets a virtual environment of its own (dali
# 1 GB, torchvision 6 GB with its CUDA libraries, the others 0.3 GB). ffcv is compiled, and needs the
# headers of OpenCV 4 and of libjpeg-turbo (Debian: apt-get install libopencv-dev libturbojpeg0-dev).
# tf-models-official runs in the Python of the benchmark: pip install 'tfscale[official]'
# PYTHON names the interpreter (default python3.11).
set -eu
root="$(cd "$(dirname "$0")/../.." && pwd)"
into="${TFSCALE_PEERS:-$root/.peers}"
peers=""
for argument in "$@"; do
    case "$argument" in
        dali | torchvision | grain | simplejpeg | ffcv) peers="$peers $argument" ;;
        --into=?*) into="${argument#--into=}" ;;
        -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "install.sh: unknown argument '$argument'; use [dali] [torchvision] [grain]" \
               "[simplejpeg] [ffcv] [--into=DIR]" >&2
           exit 2 ;;
    esac
done
[ -n "$peers" ] || peers="dali torchvision grain simplejpeg"

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

install_dali() {
    step "installing DALI" "$python" -m pip install "nvidia-dali-cuda120==2.4.0" "numpy<3"
    step "checking" "$python" -c "import nvidia.dali.fn as fn; fn.decoders.image_random_crop"
}

install_torchvision() {
    step "installing PyTorch and torchvision" "$python" -m pip install "torch==2.14.1" \
        "torchvision==0.29.1" "pillow<14"
    step "checking" "$python" -c "import torchvision.transforms.v2"
}

install_grain() {
    step "installing grain and OpenCV" "$python" -m pip install "grain==0.2.18" \
        "opencv-python-headless==5.0.0.93"
    step "checking" "$python" -c "import cv2, grain; grain.MapDataset"
}

install_simplejpeg() {
    step "installing simplejpeg and OpenCV" "$python" -m pip install "simplejpeg==1.9.0" \
        "opencv-python-headless==5.0.0.93"
    step "checking" "$python" -c "import cv2, simplejpeg"
}

install_ffcv() {
    # It is compiled against the NumPy that it finds, so that comes first and pip must not build in
    # isolation.
    command -v pkg-config >/dev/null && pkg-config --exists opencv4 libturbojpeg || {
        echo "install.sh: ffcv is compiled and needs pkg-config, OpenCV 4 and libturbojpeg" \
            "(Debian: apt-get install pkg-config libopencv-dev libturbojpeg0-dev g++)" >&2
        exit 1
    }
    step "installing PyTorch and numba" "$python" -m pip install "torch==2.13.0" "torchvision==0.28.0" \
        numba "opencv-python-headless<5" setuptools wheel
    step "compiling FFCV" "$python" -m pip install --no-build-isolation "ffcv==1.0.2"
    step "checking" "$python" -c "import ffcv.fields.decoders"
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
