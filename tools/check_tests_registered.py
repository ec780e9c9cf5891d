#!/usr/bin/env python3
"""Refuses a test or fuzz target on disk that no CMake list names: it would never run, and nobody would notice.

    tools/check_tests_registered.py [--root DIR]   one line a fault; exit 1 when there is any
    tools/check_tests_registered.py --self-test    plants faults in a small tree of its own and expects each to be found

The list must be in the CMakeLists.txt of the file's own folder or of one above it, and name the file by its path from there.
"""
import argparse
import os
import re
import sys
import tempfile

PATTERN = re.compile(r"(?:_test|_fuzz|^fuzz_\w+)\.(?:cc|cu)$")
SKIPPED_FOLDERS = {"build", "node_modules", ".git", ".cache"}


def cmake_words(path):
    """Every unquoted or quoted argument of a CMake file, comments left out."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    text = re.sub(r"#\[(=*)\[.*?\]\1\]", " ", text, flags=re.S)
    text = re.sub(r"#[^\n]*", " ", text)
    return set(re.split(r'[\s()";]+', text))


def check_tree(root):
    words, faults, num_tests = {}, [], 0
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(d for d in subfolders if d not in SKIPPED_FOLDERS)
        for name in sorted(files):
            if not PATTERN.search(name):
                continue
            num_tests += 1
            path = os.path.join(folder, name)
            above = folder
            while True:
                cmake = os.path.join(above, "CMakeLists.txt")
                if cmake not in words:
                    words[cmake] = cmake_words(cmake) if os.path.isfile(cmake) else set()
                if os.path.relpath(path, above) in words[cmake]:
                    break
                if os.path.samefile(above, root):
                    faults.append(f"{os.path.relpath(path, root)}: no CMakeLists.txt names it, so it never runs")
                    break
                above = os.path.dirname(above)
    if num_tests == 0:
        faults.append(f"{root}: no *_test.cc was found, so nothing was checked")
    return faults, num_tests


SOUND = {
    "CMakeLists.txt": "add_subdirectory(src/base)\ndsv4_test(NAME far SOURCES src/far/x_test.cc)\n",
    "src/base/CMakeLists.txt": 'dsv4_room(NAME base\n  TESTS a_test.cc "deep/b_test.cc") # c_test.cc\ndsv4_fuzz(NAME f SOURCES d_fuzz.cc)\n',
    "src/base/a_test.cc": "",
    "src/base/deep/b_test.cc": "",
    "src/base/d_fuzz.cc": "",
    "src/far/x_test.cc": "",
    "build/dev/z_test.cc": "",
    "src/base/testing.cc": "",
}
PLANTED = [
    ("a file named in a comment only", {"src/base/c_test.cc": ""}, "src/base/c_test.cc"),
    ("a name that is the end of another", {"src/base/b_test.cc": ""}, "src/base/b_test.cc"),
    ("a name that is part of a longer one", {"src/base/CMakeLists.txt": SOUND["src/base/CMakeLists.txt"].replace("a_test.cc", "aa_test.cc")}, "src/base/a_test.cc"),
    ("a folder without lists", {"src/new/y_test.cc": ""}, "src/new/y_test.cc"),
    ("a fuzz target", {"src/base/e_fuzz.cc": ""}, "src/base/e_fuzz.cc"),
    ("a fuzz target named the other way", {"src/base/fuzz_e.cc": ""}, "src/base/fuzz_e.cc"),
    ("a device test", {"src/base/k_test.cu": ""}, "src/base/k_test.cu"),
    ("a block comment", {"src/far/CMakeLists.txt": "#[[ w_test.cc ]]\n", "src/far/w_test.cc": ""}, "src/far/w_test.cc"),
]


def self_test():
    wrong = []
    for what, extra, word in [("a sound tree", {}, None)] + PLANTED + [("an empty tree", None, "no *_test.cc")]:
        with tempfile.TemporaryDirectory() as root:
            for name, text in ({} if extra is None else {**SOUND, **extra}).items():
                path = os.path.join(root, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)
            faults = check_tree(root)[0]
            if not (faults == [] if word is None else len(faults) == 1 and word in faults[0]):
                wrong.append(f"{what}: expected {word or 'no fault'}, found {faults}")
    for w in wrong:
        print(f"self-test: {w}")
    print(f"check_tests_registered self-test: {len(PLANTED) + 2} cases, {len(wrong)} wrong")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    faults, num_tests = check_tree(args.root)
    for fault in faults:
        print(fault)
    print(f"check_tests_registered: {num_tests} test files, {len(faults)} unregistered")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
