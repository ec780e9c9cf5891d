#!/usr/bin/env bash
# tools/slurm/dsv4.sbatch with a stub srun and a stub dsv4: the exit code, the files and the summary.
set -uo pipefail
script=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/dsv4.sbatch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
faults=0

fail() {
  echo "FAILED: $1" >&2
  faults=$((faults + 1))
}

mkdir "$work/bin"
# srun: passes its arguments on, after its own options, and the exit code back; a signal's code when told to die.
cat >"$work/bin/srun" <<'STUB'
#!/usr/bin/env bash
while [[ ${1:-} == --* ]]; do shift; done
[[ -n ${STUB_SRUN_CODE:-} ]] && { echo "srun: error: task 0: Exited with exit code $STUB_SRUN_CODE" >&2; exit "$STUB_SRUN_CODE"; }
"$@"
STUB
cat >"$work/bin/dsv4" <<'STUB'
#!/usr/bin/env bash
if [[ $1 == triage ]]; then
  echo "REFUSED: stub"
  exit 1
fi
echo "ARGUMENTS: $*"
echo "VERDICT: ${STUB_VERDICT:-COHERENT} (stub)"
echo "to stderr" >&2
for ((i = 1; i < $#; ++i)); do
  [[ ${!i} == --report ]] && { j=$((i + 1)); echo '{}' >"${!j}"; }
done
[[ ${STUB_CODE:-0} == kill ]] && kill -9 $$
exit "${STUB_CODE:-0}"
STUB
chmod +x "$work/bin/srun" "$work/bin/dsv4"

# run NAME EXPECTED_CODE ARGUMENTS...: runs the script in a fresh directory
run() {
  local name=$1 want=$2
  shift 2
  dir=$work/$name
  out=$(PATH="$work/bin:$PATH" SLURM_JOB_ID=42 DSV4_LOG_DIR="$dir" bash "$script" "$@" 2>&1)
  local code=$?
  [[ $code == "$want" ]] || fail "$name: exit code $code instead of $want"
}

run good 0 probe --model m
grep -q '^VERDICT: COHERENT' "$work/good/raw.log" || fail "good: the verdict is not in the raw log"
grep -q '^to stderr' "$work/good/raw.log" || fail "good: standard error is not in the raw log"
grep -q '^EXIT_CODE: 0$' "$work/good/raw.log" || fail "good: no exit code in the raw log"
grep -q "ARGUMENTS: probe --model m --report $work/good/report.json" "$work/good/raw.log" || fail "good: arguments"
[[ -f $work/good/report.json ]] || fail "good: no report"
grep -q 'exit code: 0' <<<"$out" || fail "good: the summary has no exit code"
grep -q 'verdict:   VERDICT: COHERENT' <<<"$out" || fail "good: the summary has no verdict"

STUB_VERDICT=BOS_LOOP STUB_CODE=12 run refused 12 probe
grep -q '^EXIT_CODE: 12$' "$work/refused/raw.log" || fail "refused: no exit code in the raw log"
grep -q 'triage:    REFUSED: stub' <<<"$out" || fail "refused: the summary has no triage"

STUB_CODE="kill" run killed 137 probe
STUB_SRUN_CODE=7 run launcher 7 probe
grep -q 'srun: error' "$work/launcher/raw.log" || fail "launcher: its error is not in the raw log"
run other 0 verify suite --quick
grep -q -- '--report' "$work/other/raw.log" && fail "other: only probe takes --report"
run nothing 2

out=$(PATH="/usr/bin:/bin" SLURM_JOB_ID=42 DSV4_LOG_DIR="$work/missing" SRUN="$work/bin/no-such-srun" bash "$script" probe 2>&1)
[[ $? == 127 ]] || fail "missing launcher: not 127"

if ((faults > 0)); then
  echo "$faults faults" >&2
  exit 1
fi
echo "ok"
