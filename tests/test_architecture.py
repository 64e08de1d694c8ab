"""The architecture as tests: imports go down, private APIs stay in one file, facades stay lazy."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What each module may import from the package. Modules not named here sit on top and may
# import anything that is; a folder's name stands for all of its modules.
ARROWS = {
    "tfscale": {"_lazy"},
    "_lazy": set(),
    "addresses": set(),
    "tf_config": {"addresses"},
    "cluster": {"tf_config"},
    "topology": set(),
    "cores": set(),
    "gpus": set(),
    "rendezvous": {"addresses"},
    "preflight": {"addresses", "cluster", "rendezvous"},
    "process_group": set(),
    "processes": {"process_group"},
    "config_types": set(),
    "config": {"config_types"},
    "_keras": set(),
    "losses": {"_keras"},
    "distribute._tf_private": set(),
    "distribute.compression": set(),
    "distribute.lost_workers": {"cluster", "distribute._tf_private"},
    "distribute.key_value_store": {"distribute._tf_private", "distribute.lost_workers"},
    "distribute.agreement": {"distribute._tf_private", "distribute.key_value_store"},
    "distribute.merging": set(),
    "distribute.cost_model": {"distribute.merging"},
    "distribute.buckets": set(),
    "distribute.collectives": {"topology", "distribute.compression", "distribute._tf_private"},
    "distribute.layout": set(),
    "distribute.fusion": {"distribute.collectives", "distribute.compression", "distribute.layout"},
    "distribute.timeline": {"distribute._tf_private"},
    "distribute.error_feedback": {"distribute._tf_private"},
    "distribute.bucket_memory": {"distribute.error_feedback"},
    "distribute.planning": {"distribute.buckets", "distribute.merging"},
    "distribute.link_cost": {
        "distribute.agreement",
        "distribute.bucket_memory",
        "distribute.error_feedback",
        "distribute.fusion",
        "distribute.merging",
    },
    "distribute.adaptive": {
        "distribute._tf_private",
        "distribute.agreement",
        "distribute.buckets",
        "distribute.link_cost",
        "distribute.planning",
        "distribute.timeline",
    },
    "distribute.replica_groups": {"topology", "distribute._tf_private"},
    "distribute.exchange": {
        "distribute.adaptive",
        "distribute.bucket_memory",
        "distribute.buckets",
        "distribute.compression",
        "distribute.error_feedback",
        "distribute.fusion",
        "distribute.timeline",
    },
    "distribute.all_reduce": {
        "distribute._tf_private",
        "distribute.adaptive",
        "distribute.agreement",
        "distribute.collectives",
        "distribute.compression",
        "distribute.exchange",
        "distribute.fusion",
        "distribute.lost_workers",
    },
    "distribute.devices": {"distribute._tf_private"},
    "distribute.strategy": {
        "cluster",
        "distribute.devices",
        "preflight",
        "topology",
        "_keras",
        "distribute._tf_private",
        "distribute.agreement",
        "distribute.all_reduce",
    },
    "layers": {"topology", "_keras", "distribute.replica_groups"},
    "optimizers": {"_keras"},
    "models": {"_keras"},
    "precision": {"_keras"},
}
LAUNCH_USES = {
    "cluster",
    "cores",
    "gpus",
    "preflight",
    "processes",
    "rendezvous.ports",
    "rendezvous.proxies",
    "tfscale",
}
BOTTOM = (
    "_lazy",
    "addresses",
    "cluster",
    "config",
    "config_types",
    "cores",
    "distribute.merging",
    "gpus",
    "preflight",
    "process_group.commands",
    "process_group.group_result",
    "process_group.guard",
    "process_group.output",
    "process_group.signals",
    "process_group.watchdog",
    "processes",
    "rendezvous.channels",
    "rendezvous.disagreements",
    "rendezvous.leader",
    "rendezvous.member",
    "rendezvous.participant",
    "rendezvous.ports",
    "rendezvous.proxies",
    "tf_config",
    "topology",
)
PRIVATE_TENSORFLOW = re.compile(r"tensorflow\.python|tensorflow\.core|extended\._|_extended\._")
PRIVATE_KERAS = re.compile(r"tf_keras\.src|keras\.src")


def sources(folder):
    return sorted(p for p in (ROOT / folder).rglob("*.py") if "__pycache__" not in p.parts)


def module_name(path):
    """tfscale/data/images.py -> data.images; a facade is its folder's name."""
    parts = path.relative_to(ROOT / "tfscale").with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts) or "tfscale"


MODULES = {module_name(p): p for p in sources("tfscale")}


def imported(path):
    """The dotted names that a file imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or path.parent.name == "launch", f"{path}: relative import"
            if node.level == 0:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def internal_imports(path):
    """The package's modules that a file imports, as names relative to the package."""
    found = set()
    for name in imported(path):
        if name == "tfscale" or name.startswith("tfscale."):
            name = name.removeprefix("tfscale").lstrip(".")
            while name and name not in MODULES:
                name = name.rpartition(".")[0]
            found.add(name or "tfscale")
    return found


def allowed(module):
    """The entry of ARROWS for a module or the nearest folder above it; None if it is on top."""
    while module:
        if module in ARROWS:
            return ARROWS[module]
        module = module.rpartition(".")[0]
    return None


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_down(module):
    path = MODULES[module]
    permitted = ARROWS["tfscale"] if path.name == "__init__.py" else allowed(module)
    if permitted is None:
        return
    folder = module.rpartition(".")[0]
    for other in internal_imports(path):
        below = any(other == p or other.startswith(p + ".") for p in permitted)
        sibling = folder and folder in ARROWS and other.startswith(folder + ".")
        own_part = other.startswith(module + ".")
        assert below or sibling or own_part, (
            f"{module} imports {other}; it may import {sorted(permitted)}"
        )


def test_no_import_circles():
    graph = {m: internal_imports(p) for m, p in MODULES.items() if p.name != "__init__.py"}
    state = {}

    def visit(module, trail):
        if state.get(module) == "done" or module not in graph:
            return
        assert state.get(module) != "open", " -> ".join([*trail, module])
        state[module] = "open"
        for other in graph[module]:
            visit(other, [*trail, module])
        state[module] = "done"

    for module in graph:
        visit(module, [])


def test_facades_are_not_imported_inside():
    facades = {m for m, p in MODULES.items() if p.name == "__init__.py"} - {"_keras"}
    for module, path in MODULES.items():
        for name in imported(path):
            name = name.removeprefix("tfscale.")
            owner, _, attribute = name.rpartition(".")
            if owner in facades and f"{owner}.{attribute}" not in MODULES:
                pytest.fail(f"{module} imports {attribute} from the facade {owner}")


@pytest.mark.parametrize(
    "pattern, home",
    [
        (PRIVATE_TENSORFLOW, "tfscale/distribute/_tf_private"),
        (PRIVATE_KERAS, "tfscale/_keras"),
    ],
)
def test_private_apis_stay_in_one_place(pattern, home):
    for folder in ("tfscale", "experiments", "launch"):
        for path in sources(folder):
            if str(path.relative_to(ROOT)).startswith(home):
                continue
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant):
                    continue
                text = ""
                if isinstance(node, ast.Attribute):
                    text = ast.unparse(node)
                elif isinstance(node, ast.Import | ast.ImportFrom):
                    text = ast.unparse(node).replace(" import ", ".")
                assert not pattern.search(text), f"{path}:{node.lineno}: {text}"


def test_nothing_in_the_package_imports_the_programs():
    for path in sources("tfscale"):
        for name in imported(path):
            assert not name.startswith(("experiments", "launch", "tests")), f"{path}: {name}"


def test_launch_stays_light():
    for path in sources("launch"):
        for other in internal_imports(path):
            assert other in LAUNCH_USES, f"{path}: {other}"


def test_bottom_is_standard_library_only():
    for module in BOTTOM:
        for name in imported(MODULES[module]):
            top = name.split(".")[0]
            assert top == "tfscale" or top in sys.stdlib_module_names, f"{module}: {name}"


def test_importing_the_package_does_not_load_tensorflow():
    modules = [f"tfscale.{m}" for m in BOTTOM if m != "process_group.watchdog"]
    names = ", ".join(["tfscale", *modules, "launch.local", "launch.cli"])
    code = f"import sys, {names}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_public_names_resolve():
    import importlib

    for module, path in MODULES.items():
        if path.name == "__init__.py" and module != "_keras":
            facade = importlib.import_module(
                f"tfscale.{module}".replace("tfscale.tfscale", "tfscale")
            )
            assert facade.__all__ == sorted(facade.__all__)
            for name in facade.__all__:
                assert getattr(facade, name) is not None


def test_top_level_holds_what_was_agreed():
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    top = {name.split("/")[0] for name in tracked}
    agreed = {"tfscale", "experiments", "launch", "tests", "requirements.txt", "setup.py"}
    agreed |= {"README.md", "LICENSE"}
    assert {name for name in top if not name.startswith(".")} <= agreed


def test_no_grab_bags():
    for folder in ("tfscale", "experiments", "launch"):
        for path in sources(folder):
            assert path.stem not in {"utils", "helpers", "common", "misc"}, path
            lines = len(path.read_text().splitlines())
            assert lines <= 400, f"{path} has {lines} lines: split it by idea"
