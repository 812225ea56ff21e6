#!/usr/bin/env bash
# Set up an environment in which the continuous batching of transformers runs without a GPU:
#
#     tests/transformers/install.sh VENV VERSION
#
# About 1.2 GB, most of it torch. transformers itself goes to VENV/transformers/VERSION, so that one
# environment serves several versions. It needs psutil to size its cache without a GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$1 version=$2
"${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install --constraint constraints.txt torch
"${pip[@]}" install psutil pytest "transformers==$version"
"${pip[@]}" install --editable .
"${pip[@]}" install --no-deps --upgrade --target "$venv/transformers/$version" "transformers==$version"
