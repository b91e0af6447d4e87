"""Writes what is inside the module: an SBOM, and the licences of all parts.

    sbom.py sbom TRIPLE RUSTC ZIG MODULE >sbom
    sbom.py licences TRIPLE RUSTC ZIG

The SBOM is CycloneDX 1.5 in JSON. It names the crates whose code is in the module, with the checksums of Cargo.lock, and
what the compiler and the linker add. Crates that only run while the module is built are not in it. RUSTC is what
`rustc --version` prints, ZIG the version of zig, MODULE the file itself, whose hash stands at the head. The time is
SOURCE_DATE_EPOCH. The same source gives the same bytes.
"""

import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid


def packages_inside(triple):
    """The crates whose code is in the module, and which of them each depends on. No build scripts, no procedural macros
    and nothing that only those use."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", triple]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    inside, depends, todo = {}, {}, [root]
    while todo:
        package = packages[todo.pop()]
        if is_macro(package) or package["id"] in inside:
            continue
        inside[package["id"]] = package
        normal = [dependency["pkg"] for dependency in nodes[package["id"]]["deps"]
                  if any(kind["kind"] is None for kind in dependency["dep_kinds"])]
        depends[reference(package)] = sorted({reference(packages[name]) for name in normal if not is_macro(packages[name])})
        todo += normal
    own = inside.pop(root)
    others = sorted(inside.values(), key=lambda package: (package["name"], package["version"]))
    return own, others, depends


def is_macro(package):
    return any("proc-macro" in target["kind"] for target in package["targets"])


def reference(package):
    """The package URL: of a crate in its registry, or of the module, which is in none."""
    kind = "cargo" if package["source"] else "generic"
    return f"pkg:{kind}/{package['name']}@{package['version']}"


def checksums():
    """The SHA-256 of each crate's archive, as Cargo.lock has it."""
    lock = pathlib.Path("Cargo.lock").read_text("utf-8")
    entries = re.findall(r'name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "([0-9a-f]{64})"', lock)
    return {(name, version): checksum for name, version, checksum in entries}


def parts_without_crate(rustc, zig):
    """What the compiler and the linker add."""
    parts = [("rust-std", rustc.split()[1], "The standard library of Rust", "MIT OR Apache-2.0")]
    licence = "Apache-2.0 WITH LLVM-exception"
    parts.append(("libunwind", f"zig-{zig}", "LLVM's unwinder, as zig brings it", licence))
    parts.append(("compiler-rt", f"zig-{zig}", "Helpers of the compiler, as zig brings them", "MIT"))
    return parts


def sha256(checksum):
    return [{"alg": "SHA-256", "content": checksum}]


def component(package, checksum):
    """A crate as CycloneDX describes it. Older crates separate alternative licences by a slash."""
    entry = {"type": "library", "bom-ref": reference(package), "name": package["name"], "version": package["version"],
             "scope": "required", "purl": reference(package),
             "licenses": [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}]}
    if package["description"]:
        entry["description"] = " ".join(package["description"].split())
    if package["repository"]:
        entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    if checksum:
        entry["hashes"] = sha256(checksum)
    return entry


def sbom(triple, rustc, zig, module):
    own, others, depends = packages_inside(triple)
    known = checksums()
    # The module's own crates are in no registry, and their code is in the hash of the module.
    foreign = [package for package in others if package["source"]]
    missing = [package["id"] for package in foreign if (package["name"], package["version"]) not in known]
    if missing:
        sys.exit(f"Cargo.lock has no checksum of {missing}")
    components = [component(package, known.get((package["name"], package["version"]))) for package in others]
    for name, version, description, licence in parts_without_crate(rustc, zig):
        part = {"type": "library", "bom-ref": f"toolchain:{name}@{version}", "name": name, "version": version,
                "scope": "required", "description": description, "licenses": [{"expression": licence}]}
        components.append(part)
        depends[part["bom-ref"]] = []
        depends[reference(own)].append(part["bom-ref"])
    # The hash is that of the file, which has the name of a library and not of a crate.
    module_hash = hashlib.sha256(pathlib.Path(module).read_bytes()).hexdigest()
    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, module_hash)}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": component(own, module_hash),
            "properties": [{"name": "target", "value": triple}, {"name": "rustc", "value": rustc}],
        },
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": on} for ref, on in sorted(depends.items())],
    }
    return json.dumps(bom, indent=2, ensure_ascii=False) + "\n"


def licences(triple, rustc, zig):
    """Every part with its licence, then each text once, with the names of those that carry it."""
    _, others, _ = packages_inside(triple)
    others = [package for package in others if package["source"]]
    lines = ["The module contains, beside its own code:", ""]
    texts = {}
    for package in others:
        name = f"{package['name']} {package['version']}"
        lines.append(f"    {name}: {package['license']}")
        for file in sorted(pathlib.Path(package["manifest_path"]).parent.iterdir()):
            if file.is_file() and re.match(r"(?i)(licen[cs]e|copying|copyright|notice|unlicense)", file.name):
                text = "\n".join(line.rstrip() for line in file.read_text("utf-8").strip().splitlines())
                texts.setdefault(text, []).append(name)
    for name, version, _, licence in parts_without_crate(rustc, zig):
        lines.append(f"    {name} {version}: {licence}")
    for text, names in texts.items():
        lines += ["", "-" * 100, "", *(f"{name}:" for name in dict.fromkeys(names)), "", text]
    return "\n".join(lines) + "\n"


def main():
    what, *arguments = sys.argv[1:] or [""]
    if what == "sbom":
        sys.stdout.write(sbom(*arguments))
    elif what == "licences":
        sys.stdout.write(licences(*arguments))
    else:
        sys.exit(__doc__)


main()
