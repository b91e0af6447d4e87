"""Completes the SBOM that cargo-cyclonedx writes, and collects the licences of what it lists.

    sbom.py sbom TRIPLE RUSTC ZIG <draft >sbom
    sbom.py licences TRIPLE RUSTC ZIG

In the draft every crate is "required", those too that only run while the module is built, paths of the build machine are
in it, and the parts that no crate brings are missing. RUSTC is what `rustc --version` prints, ZIG the version of zig.
"""

import json
import pathlib
import re
import subprocess
import sys


def packages_inside(triple):
    """The crates whose code is in the module: no build scripts, no procedural macros and nothing that only those use."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", triple]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    inside, todo = {}, [root]
    while todo:
        package = packages[todo.pop()]
        macro = any("proc-macro" in target["kind"] for target in package["targets"])
        if macro or package["id"] in inside:
            continue
        inside[package["id"]] = package
        for dependency in nodes[package["id"]]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                todo.append(dependency["pkg"])
    own = inside.pop(root)
    others = sorted(inside.values(), key=lambda package: (package["name"], package["version"]))
    return own, others


def parts_without_crate(triple, rustc, zig):
    """What the compiler and the linker add."""
    parts = [("rust-std", rustc.split()[1], "The standard library of Rust", "MIT OR Apache-2.0")]
    licence = "Apache-2.0 WITH LLVM-exception"
    parts.append(("libunwind", f"zig-{zig}", "LLVM's unwinder, as zig brings it", licence))
    parts.append(("compiler-rt", f"zig-{zig}", "Helpers of the compiler, as zig brings them", "MIT"))
    return parts


def complete(draft, triple, rustc, zig):
    own, others = packages_inside(triple)
    # The draft names the module by the folder that it was built in.
    folder = str(pathlib.Path(own["manifest_path"]).parent)
    bom = json.loads(re.sub(r'path\+file://[^"#]*#', "", draft).replace("?download_url=file://.", ""))
    names = {(package["name"], package["version"]) for package in others}
    for component in bom["components"]:
        inside = (component["name"], component["version"]) in names
        component["scope"] = "required" if inside else "excluded"
        names.discard((component["name"], component["version"]))
    if names:
        sys.exit(f"cargo-cyclonedx lists no {sorted(names)}")
    reference = bom["metadata"]["component"]["bom-ref"]
    depends = next(entry for entry in bom["dependencies"] if entry["ref"] == reference)
    for name, version, description, licence in parts_without_crate(triple, rustc, zig):
        part = {"type": "library", "bom-ref": f"toolchain#{name}@{version}", "name": name, "version": version,
                "description": description, "scope": "required", "licenses": [{"expression": licence}]}
        bom["components"].append(part)
        bom["dependencies"].append({"ref": part["bom-ref"]})
        depends.setdefault("dependsOn", []).append(part["bom-ref"])
    text = json.dumps(bom, indent=2, ensure_ascii=False)
    if folder in text or "file://" in text:
        sys.exit(f"the SBOM names the folder {folder}")
    return text + "\n"


def licences(triple, rustc, zig):
    """Every part with its licence, then each text once, with the names of those that carry it."""
    _, others = packages_inside(triple)
    lines = ["The module contains, beside its own code:", ""]
    texts = {}
    for package in others:
        name = f"{package['name']} {package['version']}"
        lines.append(f"    {name}: {package['license']}")
        for file in sorted(pathlib.Path(package["manifest_path"]).parent.iterdir()):
            if file.is_file() and re.match(r"(?i)(licen[cs]e|copying|copyright|notice|unlicense)", file.name):
                text = "\n".join(line.rstrip() for line in file.read_text("utf-8").strip().splitlines())
                texts.setdefault(text, []).append(name)
    for name, version, _, licence in parts_without_crate(triple, rustc, zig):
        lines.append(f"    {name} {version}: {licence}")
    for text, names in texts.items():
        lines += ["", "-" * 100, "", *(f"{name}:" for name in dict.fromkeys(names)), "", text]
    return "\n".join(lines) + "\n"


def main():
    what, *toolchain = sys.argv[1:]
    if what == "sbom":
        sys.stdout.write(complete(sys.stdin.read(), *toolchain))
    elif what == "licences":
        sys.stdout.write(licences(*toolchain))
    else:
        sys.exit(__doc__)


main()
