#!/bin/sh
# Sets everything up and trains a small ResNet on 2 workers x 2 devices, in a few minutes.
#   sh launch/quickstart.sh                               handwritten digits, no download
#   sh launch/quickstart.sh --dataset=fashion_mnist       Fashion-MNIST
#   sh launch/quickstart.sh --data_dir=DIR                your images, one folder per class
#   sh launch/quickstart.sh --help                        every flag
# Makes the virtual environment .venv, or uses the active one.
# PYTHON names the interpreter that makes it (default python3).
set -eu
cd "$(dirname "$0")/.."
if [ -z "${VIRTUAL_ENV:-}" ]; then
    python="${PYTHON:-python3}"
    "$python" -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v == (3, 11) else
        f"tfscale pins its packages for Python 3.11, and {sys.executable} is {v[0]}.{v[1]}. "
        "Set PYTHON to a Python 3.11.")'
    if [ ! -x .venv/bin/python ]; then
        echo "Making the virtual environment .venv ..."
        "$python" -m venv .venv
    fi
    VIRTUAL_ENV="$PWD/.venv"
fi
export VIRTUAL_ENV
PATH="$VIRTUAL_ENV/bin:$PATH"
export PATH
if ! python -c 'import sys
from importlib.util import find_spec
sys.exit(None in map(find_spec, ["tensorflow", "tf_keras", "absl", "sklearn"]))'; then
    echo "Installing TensorFlow and what it needs (a minute or two, once) ..."
    python -m pip install --quiet --constraint requirements.txt ".[quickstart]"
    # Programs started here import the package from here: its C ops must lie here too.
    python setup.py --quiet build_ext --inplace
    rm -rf build ./*.egg-info
fi
exec python -m experiments.quickstart "$@"
