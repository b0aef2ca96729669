#!/usr/bin/env bash
# make_models.sh TOOLS OUT [SHAPE]: a model with random weights in a real shape (llama-1b) as
# OUT/BF16.gguf and a Hugging Face folder, and OUT/Q8_0.gguf, Q4_0.gguf, Q4_K_M.gguf made by the
# llama-quantize of TOOLS (a folder that build.sh printed). 6 GB on disk, needs numpy.
set -euo pipefail
readonly usage="usage: make_models.sh TOOLS OUT [SHAPE]"
tools=${1:?$usage} out=${2:?$usage}
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[ -f "$out/BF16.gguf" ] || {
  python3 "$here/make_model.py" "${3:-llama-1b}" "$out"
  mv "$out/model-bf16.gguf" "$out/BF16.gguf"
}
# --pure: the tied embedding, which is the output head too, in the format that the file is named by.
for format in ${FORMATS:-Q8_0 Q4_0 Q4_K_M}; do
  [ -f "$out/$format.gguf" ] && continue
  pure=--pure
  [ "$format" = Q4_K_M ] && pure=
  "$tools/llama-quantize" $pure "$out/BF16.gguf" "$out/$format.part" "$format" >/dev/null 2>&1
  mv "$out/$format.part" "$out/$format.gguf"
done
