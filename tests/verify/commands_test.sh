#!/usr/bin/env bash
# commands_test.sh DSV4 DSV4_FAULTY CASE: the proof commands as a user runs them, on the shipped model; exit codes, files and words.
set -uo pipefail
dsv4=$1 faulty=$2 name=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
faults=0

fail() {
  echo "FAILED: $1" >&2
  faults=$((faults + 1))
}

# expect CODE PROGRAM ARGUMENTS...: runs it, output to $work/out and $work/err
expect() {
  local want=$1 code
  shift
  "$@" >"$work/out" 2>"$work/err"
  code=$?
  [[ $code == "$want" ]] && return
  fail "exit code $code instead of $want: ${*:2}"
  tail -n 40 "$work/out" "$work/err" >&2
}

# has FILE REGEX: a line matches
has() {
  grep -Eq -- "$2" "$1" || { fail "nothing in $1 matches $2"; head -n 40 "$1" >&2; }
}

case $name in
  probe)
    expect 0 "$dsv4" probe -q --report "$work/report.json"
    for stage in env config load engine generate; do has "$work/out" "^### STAGE: $stage ok in "; done
    has "$work/out" '^TOKEN_IDS: \[491, '
    for line in FINISH_REASON TOKEN_DECODE OUTPUT_REPR OUTPUT; do has "$work/out" "^$line: "; done
    has "$work/out" '^VERDICT: COHERENT '
    has "$work/report.json" '"verdict": "COHERENT"'
    has "$work/report.json" '"commit": '
    expect 0 "$dsv4" probe -q --json
    has "$work/out" '"exit_code": 0'
    expect 0 "$dsv4" probe -q --message 'What is 512 + 561?' --answer 1073
    expect 16 "$dsv4" probe -q --message 'What is 512 + 561?' --answer 1074
    has "$work/out" '^VERDICT: MISMATCH '
    expect 1 "$dsv4" probe -q no/such/model
    has "$work/out" '^### STAGE: config FAILED '
    ;;
  canary)
    expect 0 "$dsv4" canary -q
    has "$work/out" "^arithmetic 1/3 +ok +'1073'"
    has "$work/out" "^arithmetic 2/3 +ok +'437'"
    has "$work/out" "^arithmetic 3/3 +ok +'1073'"
    has "$work/out" '^PASSED$'
    expect 0 "$dsv4" canary -q --json
    has "$work/out" '"passed": true'
    ;;
  suite)
    expect 0 "$dsv4" verify suite -q --quick --json "$work/suite.json"
    [[ $(grep -c ' ok ' "$work/out") == 13 ]] || fail "not 13 lines that say ok"
    has "$work/suite.json" '"commit": '
    expect 2 "$dsv4" verify suite -q --only 'no such check'
    ;;
  accuracy)
    expect 0 "$dsv4" verify accuracy -q --tokens 48 --json "$work/qat.json" --svg "$work/qat.svg"
    has "$work/out" '^one-token attention .* ok '
    has "$work/qat.svg" '^<svg '
    has "$work/qat.json" '"perplexity": '
    expect 0 "$dsv4" verify accuracy -q --tokens 48 --against exact
    has "$work/out" '^perplexity .* ok '
    expect 0 "$dsv4" verify accuracy -q --against tests/data/tiny-served-1.safetensors
    ;;
  logprobs)
    expect 0 "$dsv4" verify logprobs -q --with-cache f32 --record "$work/a.json" --json "$work/comparison.json"
    has "$work/out" '^greedy agreement +9[4-6]/96 '
    expect 0 "$dsv4" verify logprobs -q --against "$work/a.json"
    has "$work/out" '^greedy agreement +96/96 '
    expect 2 "$dsv4" verify logprobs -q
    ;;
  contract)
    expect 0 "$dsv4" bench contract -q --repeats 1 --json "$work/a.json"
    [[ $(grep -c ': 65 -> 128 tokens' "$work/out") == 13 ]] || fail "not 13 rows of 65 and 128 tokens"
    has "$work/out" '^canaries +7 of 7 steps'
    # The same run twice is no gain; a tree with changes has no identity unless that is waved through.
    expect 0 "$dsv4" bench compare "$work/a.json" "$work/a.json" --vary dirty
    has "$work/out" '^undecided$'
    sed 's/"option.graph": "full"/"option.graph": "eager"/' "$work/a.json" >"$work/b.json"
    expect 2 "$dsv4" bench compare "$work/a.json" "$work/b.json" --vary dirty
    has "$work/err" 'option.graph: full against eager'
    ;;
  lab)
    printf 'name = "t"\nchange = "c"\nrounds = 1\nnew_tokens = 4\n[a]\nchunk = 64\n[b]\nchunk = 256\n' >"$work/e.toml"
    expect 0 "$dsv4" bench lab -q "$work/e.toml" --ledger "$work/ledger.jsonl"
    has "$work/ledger.jsonl" '"varied":"chunk"'
    has "$work/ledger.jsonl" '"pairs":12'
    has "$work/out" 'gates: canaries, logprobs \(96 of 96 positions agree'
    has "$work/README.md" '^\| .* \| t \| c \| '
    ;;
  profile)
    expect 0 "$dsv4" profile -q --steps 8 --json "$work/p.json" --svg "$work/p.svg"
    has "$work/out" '^gaps \(residual\) '
    has "$work/out" '^routed experts +7 '
    has "$work/p.svg" '^<svg '
    has "$work/p.json" '"headline_seconds": '
    ;;
  validate)
    expect 0 "$dsv4" run -q --prompt 'The capital of France is' --max-tokens 4
    cp "$work/out" "$work/plain"
    expect 0 "$dsv4" run -q --prompt 'The capital of France is' --max-tokens 4 --validate
    cmp -s "$work/out" "$work/plain" || fail "--validate changes the text"
    expect 0 "$dsv4" chat -q --message 'What is 512 + 561?' --validate
    has "$work/out" '^1073'
    expect 0 "$dsv4" serve --help
    has "$work/out" '--validate'
    DSV4_FAULT=logits_nan expect 1 "$faulty" run -q --prompt 'The capital of France is' --validate --dump-dir "$work/dumps"
    has "$work/err" 'validate: request 1, position [0-9]+, layer 7, lm_head, rank 0: logits: logits channel 3 is nan; tensors in '
    [[ $(find "$work/dumps" -name '*.safetensors' | wc -l) == 1 ]] || fail "not one dump"
    DSV4_FAULT=writer_584_bytes expect 15 "$faulty" probe -q --validate
    has "$work/out" '^VERDICT: NONFINITE .*kv_insert, rank 0: scale bytes: window row 0'
    ;;
  triage)
    expect 0 "$dsv4" probe -q
    cp "$work/out" "$work/good.log"
    expect 0 "$dsv4" triage "$work/good.log"
    has "$work/out" '^SUCCESS: '
    printf 'ENGINE_READY in 228.9s\nTOKEN_IDS: [32, 0, 0, ...]\nOUTPUT_REPR: %s\n4711|COMPLETED|0:0|00:09:11|\n' "'>'" >"$work/bad.log"
    expect 1 "$dsv4" triage "$work/bad.log"
    has "$work/out" '^REFUSED: '
    DSV4_FAULT=nan_in_cache_row expect 15 "$faulty" probe -q --validate
    cp "$work/out" "$work/nan.log"
    expect 1 "$dsv4" triage "$work/nan.log"
    has "$work/out" '^BLOCKED: '
    has "$work/out" '^first blocker: .*layer 1, kv_insert'
    ;;
  faults)
    # The walk of docs/proof.md.
    DSV4_FAULT=reader_stride expect 0 "$faulty" probe -q
    DSV4_FAULT=reader_stride expect 15 "$faulty" probe -q --validate
    has "$work/out" '^VERDICT: NONFINITE .*position 64, layer 0, sparse_attention, rank 0: attention: head 0 differs'
    DSV4_FAULT=reader_stride expect 1 "$faulty" canary -q
    has "$work/out" '^FAILED$'
    DSV4_FAULT=reader_stride expect 1 "$faulty" verify accuracy -q --tokens 80
    has "$work/out" '^cache round trip .* ok '
    has "$work/out" '^one-token attention .* FAILED .*first past the bound: layer 0'
    # Several engines at once.
    DSV4_FAULT=unnormalised_experts expect 0 "$faulty" verify suite -q --quick --only '2 concurrent'
    DSV4_FAULT=transposed_wo_a_scales expect 0 "$faulty" canary -q
    DSV4_FAULT=transposed_wo_a_scales expect 1 "$faulty" verify logprobs -q --with-backend reference
    has "$work/out" '^FAILED$'
    DSV4_FAULT=no_such_fault expect 2 "$faulty" canary -q
    ;;
  *) fail "there is no case \"$name\"" ;;
esac

if ((faults > 0)); then
  exit 1
fi
echo "ok"
