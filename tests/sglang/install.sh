#!/usr/bin/env bash
# Set up an environment in which SGLang runs on a machine without a GPU, on its own CPU backend:
#
#     tests/sglang/install.sh VENV VERSION
#
# Of SGLang, the Python files and the radix tree in Rust are taken, to VENV/sglang/VERSION: the other
# compiled files are for CUDA. What SGLang imports for GPUs alone has stand-ins (stand_ins.py). The
# model is the bundled engine's. About 1.4 GB, most of it torch. For x86-64, Python 3.11.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$1 version=$2
"${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install --constraint constraints.txt torch
"${pip[@]}" install --requirement tests/sglang/requirements.txt
# Their own requirements are torch for CUDA and a gigabyte of Triton.
"${pip[@]}" install --no-deps compressed-tensors==0.18.0 gguf 'xgrammar>=0.2,<0.3'
"${pip[@]}" install --editable .
wheels=$(mktemp -d)
"${pip[@]}" download --no-deps --dest "$wheels" "sglang==$version"
mkdir -p "$venv/sglang/$version"
"$venv/bin/python" - "$wheels"/sglang-*.whl "$venv/sglang/$version" <<'PY'
import pathlib
import sys
import zipfile

wheel, folder = sys.argv[1:]
names = (".py", ".json", "/METADATA", "/entry_points.txt")
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.endswith(names) or "rust_tree_core" in name:
            archive.extract(name, folder)
for name in ("include", "csrc"):  # looked for at import
    pathlib.Path(folder, "sglang/kernels/jit", name).mkdir(parents=True, exist_ok=True)
PY
rm -r "$wheels"
# It has a thousand modules, and each of its processes imports them.
"$venv/bin/python" -m compileall -q "$venv/sglang/$version/sglang/srt" || true
cp tests/sglang/stand_ins.py "$venv/sglang/$version/sitecustomize.py"
