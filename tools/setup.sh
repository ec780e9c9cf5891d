# shellcheck shell=bash
# Set-up shared by ./run and ./test: Debian packages, configure, build. Sourced, with `root` set to the repository's root.
# Everything it prints goes to stderr; standard output belongs to the program that is started afterwards.

: "${root:?tools/setup.sh is sourced by ./run and ./test}"
packages_file="$root/tools/debian-packages.txt"
build_root="$root/build"

# Compiler calls of two clones of this repository then share cache entries: paths count relative to the clone.
export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1

say() { printf 'dsv4 set-up: %s\n' "$*" >&2; }

# Names the packages for NEEDED_BY (build, test) that are not there, one a line.
missing_packages() {
  local needed_by=$1 package when commands command unchecked=()
  while read -r package when commands; do
    [[ -z $package || $package == \#* || $when != "$needed_by" ]] && continue
    if [[ $commands != - ]]; then
      for command in ${commands//,/ }; do command -v "$command" >/dev/null || { echo "$package"; break; }; done
    else
      unchecked+=("$package")
    fi
  done <"$packages_file"
  ((${#unchecked[@]})) || return 0
  local installed
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${unchecked[@]}" 2>/dev/null || true)
  for package in "${unchecked[@]}"; do grep -qx "$package installed" <<<"$installed" || echo "$package"; done
}

# Installs what missing_packages names. Asks nothing of apt when all is there.
install_packages() {
  local needed_by=$1 missing=() privilege=()
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "this system has no apt-get; tools/debian-packages.txt lists what has to be installed by other means"
    return 0
  fi
  mapfile -t missing < <(missing_packages "$needed_by")
  ((${#missing[@]})) || return 0
  if [[ $(id -u) != 0 ]]; then
    if ! command -v sudo >/dev/null; then
      say "these Debian packages are missing, and installing them takes root or sudo: ${missing[*]}"
      return 1
    fi
    privilege=(sudo)
    [[ -t 0 ]] || privilege=(sudo -n) # nobody is there to type a password
  fi
  say "installing ${missing[*]}"
  mkdir -p "$build_root"
  local log="$build_root/packages.log"
  if ! { "${privilege[@]}" apt-get update &&
    "${privilege[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
    tail -n 15 "$log" >&2
    say "installing these packages failed: ${missing[*]} (all of it: build/packages.log)"
    return 1
  fi
}

# The same once per version of the list: a copy of it in build/ says that its packages were found.
ensure_packages() {
  local stamp="$build_root/packages-$1.txt"
  cmp -s "$packages_file" "$stamp" && return 0
  install_packages "$1" || return 1
  mkdir -p "$build_root" && cp "$packages_file" "$stamp"
}

# Configures PRESET into build/PRESET. With --if-needed only when that was never done, or the presets have changed since; changed CMake
# lists are the build's own business.
configure() {
  local preset=$1 when=${2:-} directory="$build_root/$1"
  [[ $when == --if-needed && -f $directory/build.ninja && ! $root/CMakePresets.json -nt $directory/build.ninja ]] && return 0
  mkdir -p "$directory"
  local log="$directory/configure.log"
  if ! cmake -S "$root" --preset "$preset" >"$log" 2>&1 </dev/null; then
    tail -n 30 "$log" >&2
    rm -f "$build_root"/packages-*.txt # the cause may be a package that has gone
    say "configuring the $preset preset failed (all of it: build/$preset/configure.log)"
    return 1
  fi
  touch "$directory/build.ninja" # CMake leaves it alone when nothing in it changes
}

# Builds targets of a configured preset, silently when they are up to date.
build() {
  local preset=$1 directory="$build_root/$1" plan
  shift
  plan=$(ninja -C "$directory" -n "$@" 2>&1) || true
  [[ $plan == *"no work to do"* ]] && return 0
  say "building $preset"
  local quiet=(--quiet)
  [[ -t 2 ]] && quiet=()
  if ! ninja -C "$directory" "${quiet[@]}" "$@" >&2 </dev/null; then
    rm -f "$build_root"/packages-*.txt
    say "building the $preset preset failed"
    return 1
  fi
}
