#!/bin/sh
# Installs the test extras and runs the tests.
#   sh tests/run.sh            everything
#   sh tests/run.sh --fast     the subset that takes under three minutes
#   sh tests/run.sh -k lars    further arguments go to pytest
# Uses the active virtual environment; without one, makes and uses .venv.
# PYTHON names the interpreter that makes it (default python3).
set -eu
cd "$(dirname "$0")/.."
if [ -z "${VIRTUAL_ENV:-}" ]; then
    [ -x .venv/bin/python ] || "${PYTHON:-python3}" -m venv .venv
    VIRTUAL_ENV="$PWD/.venv"
fi
python="$VIRTUAL_ENV/bin/python"
"$python" -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v == (3, 11) else
    f"requirements.txt pins packages for Python 3.11, and this environment has {v[0]}.{v[1]}: "
    "set PYTHON to a Python 3.11 and remove .venv")'
echo "Installing the test extras (some minutes the first time) ..."
"$python" -m pip install --quiet --constraint requirements.txt \
    ".[quickstart,official,addons,plots,tune,test]"
# The tests import the package from this folder: its C ops must lie here too.
"$python" setup.py --quiet build_ext --inplace
rm -rf build ./*.egg-info
which="" # of the tests
if [ "${1:-}" = "--fast" ]; then
    shift
    which="not slow and "
fi
# Two at a time: most wait half of their time. pytest says 5 where it finds none to run.
beside=0 alone=0
"$python" -m pytest -q --durations=15 -n 2 --dist loadfile -m "${which}not alone" "$@" || beside=$?
"$python" -m pytest -q --durations=5 -m "${which}alone" "$@" || alone=$?
[ "$beside" = 0 ] || [ "$beside" = 5 ] || exit "$beside"
[ "$alone" = 5 ] && exit "$beside"
exit "$alone"
