"""Packaging: light runtime dependencies, everything else in extras."""

import re
from pathlib import Path

from setuptools import Extension, find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+?)"', (ROOT / "tfscale/__init__.py").read_text()).group(1)
README = ROOT / "README.md"
NATIVE = Path("tfscale/data/_native")

setup(
    name="tfscale",
    version=VERSION,
    description="Data-parallel training of Keras models on tf.distribute",
    long_description=README.read_text() if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    # launch/ lives at the top level of a clone and is installed as tfscale.launch.
    packages=[*find_packages(include=["tfscale", "tfscale.*"]), "tfscale.launch"],
    package_dir={"tfscale.launch": "launch"},
    # Not a Python module but a library of TensorFlow ops, see tfscale/data/native.py. Optional:
    # without a compiler or libjpeg-turbo the build warns and goes on.
    ext_modules=[
        Extension(
            "tfscale.data._native.ops",
            sources=sorted(str(path) for path in NATIVE.glob("*.c")),
            depends=sorted(str(path) for path in NATIVE.glob("*.h")),
            define_macros=[("_GNU_SOURCE", None)],
            extra_compile_args=["-std=c11", "-O3", "-Werror=implicit-function-declaration"],
            libraries=["jpeg"],
            optional=True,
        )
    ],
    install_requires=[
        "absl-py>=1.4",
        "keras>=3.10,<4",  # its layers augment, whichever Keras trains
        "numpy>=1.26",
        "tensorflow>=2.20,<2.22",
        "tf-keras>=2.20,<2.22",
    ],
    extras_require={
        "quickstart": ["scikit-learn>=1.3"],
        "official": ["tf-models-official>=2.20,<2.21"],
        "addons": ['tensorflow-addons>=0.23,<0.24; python_version<"3.12"'],
        "plots": ["matplotlib>=3.7"],
        "tune": ["optuna>=5,<6"],
        "test": [
            "hypothesis>=6.100",
            "pillow>=10",
            "pytest>=8",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "ruff>=0.6",
            "scikit-learn>=1.3",
            "tensorboard>=2.20,<2.22",
        ],
    },
    entry_points={"console_scripts": ["tfscale-launch=tfscale.launch.cli:main"]},
)
