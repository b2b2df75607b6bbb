"""Install the folders of this repository as the package `edl`.

The repository root is the package: master/ is edl.master, ps/ is edl.ps. Nothing
lands in site-packages under a generic name such as `proto` or `worker`.
"""

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = [
    "adaptive",
    "api",
    "chaos",
    "cli",
    "common",
    "dashboard",
    "dashboard.terminal",
    "data",
    "distill",
    "distill.kserve",
    "durable",
    "goodput",
    "integrations",
    "jobs",
    "k8s",
    "k8s.outside",
    "kernels",
    "launch",
    "loggers",
    "master",
    "master.books",
    "master.groups",
    "model_zoo",
    "nn",
    "nn.preprocess",
    "proto",
    "ps",
    "ps.books",
    "ps.rows",
    "ps.snapshots",
    "ps.wire",
    "registry",
    "replay",
    "runtime",
    "scheduler",
    "scheduler.asking",
    "scheduler.simulator",
    "serve",
    "wire",
    "worker",
    "worker.group",
    "worker.servers",
]


class BuildWithoutSetup(build_py):
    """A build without `setup.py`, which stands in the package's folder, yet is no module of it."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if module[:2] != ("edl", "setup")]


setup(
    package_dir={"edl": "."},
    packages=["edl", *(f"edl.{folder}" for folder in FOLDERS)],
    package_data={
        "edl": ["py.typed"],
        "edl.dashboard": ["page/*"],
        "edl.data": ["vendored/*"],
        "edl.k8s": ["manifests/**/*", "manifests/chart/.helmignore"],
        "edl.model_zoo": ["templates/*"],
        "edl.proto": ["*.proto", "*.pyi"],
    },
    cmdclass={"build_py": BuildWithoutSetup},
)
