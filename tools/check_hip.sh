#!/usr/bin/env bash
# Compiles what the GPU backend has for every card (src/backends/gpu: runtime, portable, and what lies beside them) as HIP, for gfx90a and gfx906:
# device code down to machine code, host code for its syntax. Nothing is run: there is no AMD card here. Without hipcc it says so and passes.
#
#   tools/check_hip.sh            all sources
#   tools/check_hip.sh FILE...    these
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
if ! command -v hipcc >/dev/null; then
  echo "hip: no hipcc here; nothing compiled"
  exit 0
fi
sources=("$@")
((${#sources[@]})) || sources=(src/backends/gpu/runtime/*.cu src/backends/gpu/portable/*.cu src/backends/gpu/*.cu)
flags=(-x hip -std=c++20 -O1 -Isrc -Wno-unused-command-line-argument)

# compile FILE: both passes; the compiler's words when it fails.
compile() {
  local log
  log=$(hipcc "${flags[@]}" --offload-arch=gfx90a --offload-arch=gfx906 --cuda-device-only -c -o /dev/null "$1" 2>&1 &&
    hipcc "${flags[@]}" --offload-arch=gfx90a --cuda-host-only -fsyntax-only "$1" 2>&1) || {
    printf 'hip: %s does not compile\n%s\n' "$1" "$log"
    return 1
  }
}
bad=0 pids=()
for source in "${sources[@]}"; do
  while (($(jobs -rp | wc -l) >= $(nproc))); do sleep 0.1; done
  compile "$source" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || bad=$((bad + 1)); done
echo "hip: ${#sources[@]} sources for gfx90a and gfx906, $bad do not compile"
((bad == 0))
