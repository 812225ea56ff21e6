#!/usr/bin/env bash
# Set up an environment in which vLLM's V1 engine runs on a machine without a GPU:
#
#     tests/vllm/install.sh VENV VERSION
#
# Of vLLM itself only the Python files are taken, to VENV/vllm/VERSION: the compiled ones are
# for CUDA, and nothing that the tests use needs them. About 1.4 GB, most of it torch. Packages
# that one version needs and another cannot have, in requirements-VERSION.txt, are put beside it.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$1 version=$2
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check)
# Once for all versions.
if [ ! "$venv/packages" -nt tests/vllm/requirements.txt ]; then
    "${PYTHON:-python3}" -m venv "$venv"
    "${pip[@]}" install --constraint constraints.txt torch
    "${pip[@]}" install --requirement tests/vllm/requirements.txt
    # Its own requirement, triton, is for GPUs, and a gigabyte.
    "${pip[@]}" install --no-deps 'xgrammar>=0.2,<0.3'
    "${pip[@]}" install --editable .
    touch "$venv/packages"
fi
wheels=$(mktemp -d)
"${pip[@]}" download --no-deps --dest "$wheels" "vllm==$version"
mkdir -p "$venv/vllm/$version"
"$venv/bin/python" - "$wheels"/vllm-*.whl "$venv/vllm/$version" <<'PY'
import sys
import zipfile

wheel, folder = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.endswith((".py", ".json", "/METADATA", "/entry_points.txt")):
            archive.extract(name, folder)
PY
# vLLM up to 0.24 runs without a GPU only if its version says so.
sed -i 's/^Version: .*/&+cpu/' "$venv/vllm/$version"/vllm-*/METADATA
rm -r "$wheels"
own=tests/vllm/requirements-$version.txt
if [ -e "$own" ]; then
    "${pip[@]}" install --no-deps --upgrade --target "$venv/vllm/$version" --requirement "$own"
fi
