#!/usr/bin/env bash
# tools/check_format.sh            names the source files that clang-format 14 would change, and their number; exits 0
# tools/check_format.sh --strict   the same, but any such file fails
# tools/check_format.sh --fix      rewrites them
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
mode=${1:---report}
formatter=clang-format-14

mapfile -d '' files < <(find src apps tests -name node_modules -prune -o -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z)
((${#files[@]})) || { echo "check_format: no source file found" >&2; exit 1; }
case $mode in
  --fix) "$formatter" -i "${files[@]}" ;;
  --report | --strict)
    # One warning a place: FILE:LINE:COLUMN: warning: code should be clang-formatted.
    differing=$("$formatter" --dry-run "${files[@]}" 2>&1 | sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: warning: code should be clang-formatted.*/  \1/p' | sort -u)
    count=$(grep -c . <<<"$differing" || true)
    [[ $count == 0 ]] || printf '%s\n' "$differing"
    echo "check_format: $count of ${#files[@]} files differ from .clang-format (tools/check_format.sh --fix rewrites them)"
    [[ $mode == --report || $count == 0 ]]
    ;;
  *)
    echo "check_format: unknown option $mode; there are --strict and --fix" >&2
    exit 2
    ;;
esac
