#!/bin/sh
# Run the main commands of an installed clpu in an empty folder: `make test-wheel` does it with the wheel alone.
#     sh tools/try-wheel.sh ENVIRONMENT/bin
set -eu
bin=$(cd "$1" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# Nothing of the surroundings helps: no PYTHONPATH, no cache of data sets, no settings.
alone() { env -i PATH="$bin:/usr/bin:/bin" HOME="$folder" LANG=C.UTF-8 "$@"; }
try() { echo "\$ $*"; alone "$@" > output 2>&1 || { cat output; echo "failed: $*"; exit 1; }; }

alone python - <<'END'
import importlib.util, pathlib, clpu, sys
assert pathlib.Path(clpu.__file__).is_relative_to(sys.prefix), f"{clpu.__file__} is not the installed package"
extra = [name for name in ("sklearn", "PIL", "ray", "pytest") if importlib.util.find_spec(name)]
assert not extra, f"the environment has more than the wheel asks for: {extra}"
END

try clpu demo
grep -q "Identical, bit for bit" output
try clpu bench
try clpu report runs/rot-digits-small
try clpu audit --profile smoke --seeds 4 --methods seq,clpu-der++ --store
grep -q "exact (proved bitwise)" output
try clpu data verify digits

try python -c '
import numpy, clpu.data
digits = clpu.data.load("digits").train
for name, part in {"low": digits.y < 5, "high": digits.y > 4}.items():
    numpy.savez(name, x=digits.x[part], y=digits.y[part])'
try clpu init agent --epochs 2 --lr 0.1
try clpu learn agent digits --data low.npz
try clpu learn agent guest --data high.npz --temporary
try clpu status agent --test digits=low.npz --test guest=high.npz
try clpu forget agent guest --receipt receipt.json
try clpu verify agent
try clpu verify-receipt receipt.json --store agent
echo "the wheel alone runs all of it"
