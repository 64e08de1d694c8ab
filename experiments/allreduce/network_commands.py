"""Runs ``ip`` and ``tc``, and says in words why they cannot."""

import os
import shutil
import subprocess
import sys

# Not every user's PATH has them.
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "iperf3": "iperf3"}
_REASONS = (
    (
        "qdisc kind is unknown",
        "this kernel has no tbf queueing discipline (CONFIG_NET_SCH_TBF, module sch_tbf), which "
        "shapes the links; --rate=none works without it",
    ),
    (
        "Operation not permitted",
        "this machine does not allow it: network namespaces need root with CAP_NET_ADMIN and "
        "CAP_SYS_ADMIN (in Docker: --privileged)",
    ),
    (
        "Unknown device type",
        "this kernel has no veth or bridge devices (CONFIG_VETH, CONFIG_BRIDGE)",
    ),
)


class LabError(RuntimeError):
    """The lab cannot be set up or does not do what it should."""


def check_machine():
    """Raises `LabError` unless this is root on a machine with the commands that the lab needs."""
    missing = [name for name in _PACKAGES if shutil.which(name, path=_PATH) is None]
    if missing:
        packages = " ".join(dict.fromkeys(_PACKAGES[name] for name in missing))
        raise LabError(
            f"the network lab needs {', '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed: apt-get install {packages} "
            "(or sh experiments/allreduce/install.sh)"
        )
    if os.geteuid() != 0:
        raise LabError(
            "the network lab needs root, for network namespaces and tc: run the same command "
            f"with sudo and this Python, as sudo drops the environment: sudo {sys.executable} ..."
        )


def run(*command, check=True):
    """Runs one command; returns its standard output.

    Raises:
        LabError: if it fails and `check` is set.
    """
    result = subprocess.run(
        [shutil.which(command[0], path=_PATH) or command[0], *command[1:]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": _PATH},
    )
    if check and result.returncode:
        said = (result.stderr or result.stdout).strip().replace("\n", "; ")
        reason = next((text for sign, text in _REASONS if sign in said), "")
        raise LabError(f"{' '.join(command)}: {said}" + (f" -- {reason}" if reason else ""))
    return result.stdout
