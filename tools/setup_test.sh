#!/usr/bin/env bash
# Tests of tools/setup.sh and of the two root scripts, with stand-ins for dpkg-query, apt-get, sudo, cmake and ninja that write down
# how they were called. Touches nothing outside a temporary folder.
set -uo pipefail
repository=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
num_cases=0 num_wrong=0

expect() { # expect WHAT CONDITION...
  local what=$1
  shift
  num_cases=$((num_cases + 1))
  "$@" || {
    num_wrong=$((num_wrong + 1))
    echo "setup_test: $what: wrong"
    sed 's/^/    calls: /' "$work/calls" 2>/dev/null
    sed 's/^/    output: /' "$work/output" 2>/dev/null
  }
}
has() { grep -qF -- "$2" "$work/$1"; }
lacks() { ! has "$@"; }
empty() { [[ ! -s $work/$1 ]]; }
count_is() { [[ $(grep -cF -- "$2" "$work/$1") == "$3" ]]; }

# A stand-in: logs "NAME ARGUMENTS", then runs the lines given.
stand_in() {
  printf '#!/bin/bash\necho "%s $*" >>"%s/calls"\n%s\n' "$1" "$work" "${2:-}" >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}

# A fresh root with three packages in its list: `alpha` by dpkg, `beta` by the command beta-tool, `gamma` for tests alone.
fresh() {
  rm -rf "${work:?}"/{bin,root,calls,output}
  mkdir -p "$work/bin" "$work/root/tools"
  : >"$work/calls"
  cp "$repository/run" "$repository/test" "$work/root/"
  cp "$repository/tools/setup.sh" "$work/root/tools/"
  printf '# list\nalpha build -\nbeta build beta-tool\ngamma test -\n' >"$work/root/tools/debian-packages.txt"
  for tool in bash env cat cp cmp grep sed tail mkdir rm touch dirname tee nproc sleep uname wc; do
    [[ -x /usr/bin/$tool || -x /bin/$tool ]] && ln -s "$(PATH=/usr/bin:/bin command -v "$tool")" "$work/bin/$tool"
  done
  stand_in id "echo ${user_id:-0}"
  stand_in dpkg-query "${installed:-echo 'alpha installed'}"
  stand_in apt-get "${apt_result:-exit 0}"
  stand_in cmake "mkdir -p '$work/root/build/release'; : >'$work/root/build/release/build.ninja'"
  stand_in ninja 'echo "ninja: no work to do."'
  mkdir -p "$work/root/build/release/apps/dsv4"
  # shellcheck disable=SC2016  # expanded by the stand-in
  printf '#!/bin/bash\nprintf "dsv4:"; printf " <%%s>" "$@"; printf "\\n"; cat\n' >"$work/root/build/release/apps/dsv4/dsv4"
  chmod +x "$work/root/build/release/apps/dsv4/dsv4"
}
start() { # start SCRIPT ARGUMENTS: standard output and error together in $work/output, standard output alone in $work/stdout
  (cd / && PATH="$work/bin" "$work/root/$1" "${@:2}" 2>"$work/stderr" >"$work/stdout" <<<"typed")
  local code=$?
  cat "$work/stdout" "$work/stderr" >"$work/output"
  return $code
}
fails_with() { # fails_with CODE SCRIPT ARGUMENTS
  local want=$1
  shift
  start "$@"
  [[ $? == "$want" ]]
}

fresh
stand_in beta-tool
expect "all packages there: run succeeds" start run
expect "no arguments start a chat, standard input is the program's" has stdout "dsv4: <chat>"
expect "standard input reaches the program" has stdout typed
expect "all packages there: apt-get is not called" lacks calls apt-get
expect "first start configures" has calls "--preset release"
expect "up to date: nothing is said" empty stderr
: >"$work/calls"
expect "second start succeeds" start run inspect "a b" --json
expect "arguments pass through unchanged" has stdout "dsv4: <inspect> <a b> <--json>"
expect "second start asks neither apt-get nor dpkg" lacks calls dpkg-query
expect "second start does not configure" lacks calls cmake
touch -d 'now + 1 minute' "$work/root/CMakePresets.json"
expect "start after a change of presets" start run
expect "changed presets configure again" has calls "--preset release"
echo "delta build -" >>"$work/root/tools/debian-packages.txt"
: >"$work/calls"
expect "start after a change of the list" start run
expect "a changed list is looked at again" has calls "install -y --no-install-recommends delta"

fresh
expect "a missing command: run succeeds" start run
expect "only what is missing is installed" has calls "apt-get install -y --no-install-recommends beta"
expect "lists are updated once" count_is calls "apt-get update" 1
expect "packages for tests are left out" lacks calls gamma
expect "as root there is no sudo" lacks calls "sudo"

installed="exit 1" fresh
stand_in beta-tool
expect "dpkg knows none: run succeeds" start run
expect "dpkg knows none: the package is installed" has calls "apt-get install -y --no-install-recommends alpha"

installed="echo 'alpha config-files'" fresh
stand_in beta-tool
expect "a removed package: run succeeds" start run
expect "a removed package is installed again" has calls "apt-get install -y --no-install-recommends alpha"

user_id=1000 fresh
expect "neither root nor sudo: exit 1" fails_with 1 run
expect "neither root nor sudo: a sentence names the packages" has stderr "takes root or sudo: beta"
expect "neither root nor sudo: apt-get is not called" lacks calls apt-get
expect "neither root nor sudo: the program is not started" empty stdout

user_id=1000 fresh
# shellcheck disable=SC2016  # expanded by the stand-in
stand_in sudo '[[ $1 == -n ]] && shift; exec "$@"'
expect "with sudo: run succeeds" start run
expect "with sudo: it runs apt-get, without asking when nobody is there" has calls "sudo -n apt-get update"

apt_result="echo 'E: no network'; exit 100" fresh
expect "apt-get fails: exit 1" fails_with 1 run
expect "apt-get fails: its words are shown" has stderr "E: no network"
expect "apt-get fails: a sentence names the packages" has stderr "installing these packages failed: beta"

fresh
rm "$work/bin/apt-get"
expect "no apt-get: goes on" start run
expect "no apt-get: says so" has stderr "no apt-get"

fresh
stand_in beta-tool
stand_in cmake "echo 'CMake Error: no compiler'; exit 1"
expect "configure fails: exit 1" fails_with 1 run
expect "configure fails: CMake's words are shown" has stderr "CMake Error: no compiler"
expect "configure fails: the packages are looked at again next time" test ! -e "$work/root/build/packages-build.txt"

fresh
stand_in beta-tool
# shellcheck disable=SC2016  # expanded by the stand-in
stand_in ninja '[[ " $* " == *" -n "* ]] && exit 0; echo "FAILED: x.o"; exit 1'
expect "build fails: exit 1" fails_with 1 run
expect "build fails: the compiler's words are on standard error" has stderr "FAILED: x.o"
expect "build fails: standard output stays clean" empty stdout

fresh
expect "test refuses an unknown option" fails_with 2 test --bogus
expect "test names the unknown option" has stderr "unknown option --bogus"
expect "test refuses --only without a value" fails_with 2 test --only
expect "test --help" start test --help
expect "test --help explains --soak" has stdout "--soak"
expect "test's refusals install nothing" lacks calls apt-get

# ./test counts what ctest says. CTest's stand-in prints the file named after the build folder.
fresh_test() {
  fresh
  stand_in beta-tool
  stand_in clang-format-14
  stand_in setarch 'exit 1'
  installed="echo 'alpha installed'; echo 'gamma installed'"
  stand_in dpkg-query "$installed"
  # shellcheck disable=SC2016  # expanded by the stand-ins
  {
    stand_in cmake 'd="'"$work"'/root/build/${@: -1}"; mkdir -p "$d"; echo "build base_test: phony src/base/base_test" >"$d/build.ninja"'
    stand_in ctest 'cat "'"$work"'/ctest-${2##*/}"'
  }
  local check
  for check in check_format check_hip; do
    printf '#!/bin/bash\necho "%s called"\n' "$check" >"$work/root/tools/$check.sh"
    chmod +x "$work/root/tools/$check.sh"
  done
  for preset in release asan tsan; do printf '100%% tests passed, 0 tests failed out of 10\n' >"$work/ctest-$preset"; done
}

fresh_test
expect "test: all green is exit 0" start test
expect "test: asan, tsan and fuzz are configured" count_is calls "cmake " 4
expect "test: tsan runs the programs it built, by label" has calls "-L ^(base_test)\$"
expect "test: the sum, format and HIP included" grep -qx "32 passed, 0 failed" "$work/stdout"
expect "test: ctest's closing line" has stdout "100% tests passed, 0 tests failed out of 10"

fresh_test
printf '3/10 Test #3: x ...***Skipped 0.1 sec\n\n100%% tests passed, 0 tests failed out of 10\n' >"$work/ctest-release"
printf '80%% tests passed, 2 tests failed out of 10\n' >"$work/ctest-asan"
printf '90%% tests passed, 1 tests failed out of 10\n' >"$work/ctest-tsan"
expect "test: failures under a sanitizer are exit 1" fails_with 1 test
expect "test: they are in the sum, and so are skipped ones" grep -qx "28 passed, 3 failed, 1 skipped" "$work/stdout"

fresh_test
echo "Segmentation fault" >"$work/ctest-tsan"
expect "test: a run without a closing line fails" fails_with 1 test
expect "test: it counts as one failure" grep -qx "22 passed, 1 failed" "$work/stdout"

fresh_test
expect "test --quick" start test --quick
expect "test --quick builds no sanitizer" count_is calls "cmake " 1
expect "test --quick: the sum" grep -qx "11 passed, 0 failed" "$work/stdout"
expect "test --quick compiles no HIP" lacks stdout "check_hip called"
expect "test leaves soak tests out" has calls "-LE soak"

fresh_test
expect "test --only" start test --only "engine.*"
expect "test --only hands the expression to ctest" has calls "-R engine.*"
expect "test --only checks no format" lacks stdout "check_format called"

fresh_test
printf 'No tests were found!!!\n' >"$work/ctest-release"
expect "test: no test is a failure" fails_with 1 test --only nothing

fresh_test
expect "test --soak" start test --soak
expect "test --soak runs the soak tests" lacks calls "-LE soak"

fresh_test
# shellcheck disable=SC2016  # expanded by the stand-in
stand_in ninja '[[ " $* " == *" -n "* ]] && exit 0; exit 1'
expect "test: a build that fails is exit 1" fails_with 1 test
expect "test: nothing passed, one failed" grep -qx "0 passed, 1 failed" "$work/stdout"

fresh_test
mkdir -p "$work/root/build/fuzz" "$work/root/tests/fuzz/good"
# shellcheck disable=SC2016  # expanded by the stand-ins
{
  stand_in good_fuzz 'echo "stat::number_of_executed_units: 77"'
  stand_in fuzz_bad 'echo "ERROR: libFuzzer: deadly signal"; exit 77'
}
printf '%s\n' "$work/bin/good_fuzz" "$work/bin/fuzz_bad" >"$work/root/build/fuzz/fuzz_targets.txt"
expect "test: a fault found by fuzzing is exit 1" fails_with 1 test --quick
expect "test: fuzz targets are in the sum" grep -qx "12 passed, 1 failed" "$work/stdout"
expect "test: the fault is shown" has stdout "deadly signal"
expect "test: seeds of the target's name are used" grep -q "^good_fuzz .*/root/tests/fuzz/good$" "$work/calls"

echo "setup_test: $num_cases cases, $num_wrong wrong"
((num_wrong == 0))
