#!/usr/bin/env bash
# Runs the fast tests with the versions of .github/oldest.txt on a machine without a GPU:
#
#   tests/oldest_torch.sh [TEST...]
#
# PyPI has torch 2.6 only with CUDA. Its libraries cannot be loaded without gigabytes of CUDA packages, but use none of
# them if there is no GPU, so all but the two smallest packages are replaced by libraries whose functions abort. The
# script downloads about 830 MB. Without arguments, the tests of the extra `hf` run in a second pytest process, because
# transformers requires a newer safetensors.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/build/oldest-torch
pip="$folder/bin/python -m pip install --quiet --disable-pip-version-check"
[ -x "$folder/bin/python" ] || python3 -m venv "$folder"
$pip --constraint .github/oldest.txt numpy rich safetensors PyYAML filelock fsspec jinja2 networkx sympy==1.13.1 \
  typing-extensions pytest pytest-xdist hypothesis matplotlib sacrebleu sentencepiece protobuf
if [ ! -d "$folder/huggingface/accelerate" ]; then
  grep -v '^safetensors' .github/oldest.txt > "$folder/huggingface.txt"
  $pip --constraint "$folder/huggingface.txt" --upgrade --target "$folder/huggingface" transformers
  $pip --no-deps --upgrade --target "$folder/huggingface" psutil accelerate  # without torch, which accelerate requires
fi
$pip --constraint .github/oldest.txt --no-deps torch nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-cupti-cu12==12.4.127
PIP_BUILD_CONSTRAINT=$PWD/constraints.txt $pip --no-deps --force-reinstall .

packages=$(echo "$folder"/lib/python*/site-packages)
libraries=$folder/libraries
mkdir -p "$libraries"
nm -D --undefined-only "$packages"/torch/lib/*.so | awk '$1 == "U" { sub("@.*", "", $2); print $2 }' | sort -u |
  grep -E '^(cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|nvrtc|cu[A-Z])' |
  awk 'BEGIN { print "#include <stdlib.h>" } { print "void " $1 "(void) { abort(); }" }' > "$libraries/functions.c"
missing='lib(cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|cusparseLt|nccl|nvrtc)\.so\.[0-9]+'
for name in $(readelf -d "$packages"/torch/lib/*.so | grep -oE "$missing" | sort -u); do
  gcc -shared -fPIC -Wl,-soname,"$name" -o "$libraries/$name" "$libraries/functions.c"
done
export LD_LIBRARY_PATH=$libraries:$packages/nvidia/cuda_runtime/lib:$packages/nvidia/cuda_cupti/lib
"$folder/bin/python" -c 'import stackattn, torch; print("torch", torch.__version__, stackattn.backends()["cpp"])'
"$folder/bin/python" -m pytest -m "not slow" "${@:-tests}"
[ $# -gt 0 ] ||
  PYTHONPATH=$folder/huggingface "$folder/bin/python" -m pytest tests/models tests/test_readme.py -k huggingface
