#!/usr/bin/env python3
"""Refuses an include edge that the room table in ARCHITECTURE.md does not allow, and vendor runtime names outside gpu/runtime.

    tools/check_includes.py [--root DIR]   checks the tree; one line a fault; exit 1 when there is any
    tools/check_includes.py --self-test    plants faults in a small tree of its own and expects each to be found

A room is a folder named by a row of the table. A room may include itself, what its row names, and what those may include in turn.
"""
import argparse
import os
import re
import sys
import tempfile

SOURCE_SUFFIXES = (".h", ".cc", ".cu", ".cuh", ".inc")
VENDOR_ROOM = "src/backends/gpu/runtime/"
# Calls, types and constants of the CUDA and HIP runtimes, drivers and libraries, and their headers. Device-side intrinsics
# (__shfl_sync, blockIdx) and headers of number formats (cuda_fp8.h) are the language of kernels, not the runtime.
VENDOR_NAME = re.compile(
    r"\b(?:cuda|hip)[A-Z]\w*|\bCUDA_[A-Z_]+|\b(?:cublas|cublasLt|hipblas|hipblasLt|rocblas|cudnn|nccl|rccl|nvrtc|nvml|nvtx|rocprofiler)[A-Z_]\w*"
    r"|\bcu(?:Init|Ctx|Device|Mem|Module|Launch|Graph|Stream|Event|Func|Get|Tensor|Multicast)[A-Z]?\w*\b"
)
VENDOR_HEADER = re.compile(r"^(?:cuda|cuda_runtime(?:_api)?|cuda_driver.*|cublas.*|nccl|nvrtc|nvml|hip/hip_runtime(?:_api)?|hipblas.*|rccl)\.h$")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', re.M)
# Comments, then literals: names in either are prose, not code. Raw strings before plain ones.
PROSE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S)


class TableError(Exception):
    pass


def read_table(text):
    """{room: set of rooms it names}; 'all' names every room that does not say 'all' itself. The table's head is | room | ... | may use |."""
    rows, columns = {}, None
    for line in text.splitlines():
        cells = [c.strip().strip("`") for c in line.strip().strip("|").split("|")] if line.strip().startswith("|") else None
        if cells is None:
            if columns is not None and rows:
                break
            continue
        if columns is None:
            if cells[0] == "room" and "may use" in cells:
                columns = cells.index("may use")
            continue
        if set(cells[0]) <= set("-: "):
            continue
        if len(cells) <= columns:
            raise TableError(f"row '{cells[0]}' has no cell under 'may use'")
        uses = [u.strip().strip("`") for u in cells[columns].split(",")]
        rows[cells[0]] = set() if uses == ["-"] else set(uses)
    if not rows:
        raise TableError("there is no table with the columns 'room' and 'may use'")
    programs = {room for room, uses in rows.items() if "all" in uses}
    for room, uses in rows.items():
        if room in programs:
            rows[room] = set(rows) - programs
        for use in rows[room]:
            if use not in rows:
                raise TableError(f"room '{room}' may use '{use}', which has no row")
    return rows


def closure(rows):
    reach = {}
    for room in rows:
        seen, todo = set(), list(rows[room])
        while todo:
            use = todo.pop()
            if use not in seen:
                seen.add(use)
                todo += rows[use]
        reach[room] = seen
    for room, uses in reach.items():
        if room in uses:
            raise TableError(f"room '{room}' reaches itself: the table has a cycle")
        backends = sorted(u for u in uses if u == "backends" or u.startswith("backends/"))
        # The rule that no edit of the table may undo: devices are known to the registry and to programs alone.
        if backends and room not in ("backends", "apps", "tests"):
            raise TableError(f"room '{room}' may not use a backend, but reaches {', '.join(backends)}")
    return reach


def room_of(path, rows):
    """Room of a path relative to the root, None outside all rooms. A folder of backends/ without a row is no part of backends."""
    for program_folder in ("apps", "tests"):
        if path.startswith(program_folder + "/") and program_folder in rows:
            return program_folder
    if not path.startswith("src/"):
        return None
    parts = path[len("src/") :].split("/")[:-1]
    for n in range(len(parts), 0, -1):
        room = "/".join(parts[:n])
        if room in rows:
            has_parts = any(r.startswith(room + "/") for r in rows)
            return f"?{'/'.join(parts[: n + 1])}" if has_parts and len(parts) > n else room
    return f"?{parts[0] if parts else path}"


def sources(root):
    for top in ("src", "apps", "tests"):
        for folder, subfolders, files in os.walk(os.path.join(root, top)):
            subfolders[:] = sorted(d for d in subfolders if d != "node_modules")
            for name in sorted(files):
                if name.endswith(SOURCE_SUFFIXES):
                    yield os.path.relpath(os.path.join(folder, name), root)


def target_of(root, path, name, quoted):
    """The repository file that an include names, relative to the root; None for the system's and other libraries'."""
    tries = [os.path.join(os.path.dirname(path), name)] if quoted else []
    for candidate in tries + [os.path.join("src", name), os.path.join("include", name)]:
        candidate = os.path.normpath(candidate)
        if os.path.isfile(os.path.join(root, candidate)):
            return candidate
    return None


def check_tree(root):
    with open(os.path.join(root, "ARCHITECTURE.md"), encoding="utf-8") as f:
        rows = read_table(f.read())
    reach = closure(rows)
    faults, num_files, num_edges = [], 0, 0
    for path in sources(root):
        num_files += 1
        with open(os.path.join(root, path), encoding="utf-8") as f:
            text = f.read()
        here = room_of(path, rows)
        if here is None or here.startswith("?"):
            faults.append(f"{path}: its folder has no row in ARCHITECTURE.md's room table")
            continue
        # Comments first, so that a commented-out include is none; string literals must stay for the names of includes.
        code = PROSE.sub(lambda m: m.group() if m.group()[0] in "\"'R" else re.sub(r"[^\n]", " ", m.group()), text)
        for m in INCLUDE.finditer(code):
            line = code.count("\n", 0, m.start()) + 1
            quoted, name = m.group(1) == '"', m.group(2)
            if VENDOR_HEADER.match(name) and not path.startswith(VENDOR_ROOM):
                faults.append(f"{path}:{line}: includes {name}; vendor runtimes belong to {VENDOR_ROOM}")
            target = target_of(root, path, name, quoted)
            if target is None:
                continue
            num_edges += 1
            there = room_of(target, rows)
            if there is not None and there != here and there not in reach[here]:
                faults.append(f"{path}:{line}: room {here} includes {name} of room {there.lstrip('?')}; it may use {', '.join(sorted(reach[here])) or 'nothing'}")
        if not path.startswith(VENDOR_ROOM):
            bare = PROSE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), INCLUDE.sub("", text))
            for m in VENDOR_NAME.finditer(bare):
                line = bare.count("\n", 0, m.start()) + 1
                faults.append(f"{path}:{line}: {m.group()} is a vendor runtime's name; these belong to {VENDOR_ROOM}")
    if num_edges == 0:
        faults.append(f"{root}: no include edge was found, so nothing was checked")
    return faults, num_files, num_edges


# --- self-test

TABLE = """
| room | holds | may use |
| --- | --- | --- |
| base | b | - |
| tensor | t | base |
| ops | o | tensor |
| backends/cpu | c | ops |
| backends/gpu | g | ops |
| backends | r | ops, backends/cpu, backends/gpu |
| model | m | ops |
| apps | a | all |
"""
SOUND = {
    "src/base/a.h": "",
    "src/tensor/a.h": '#include "base/a.h"\n',
    "src/ops/a.h": '#include <vector>\n#include "tensor/a.h"\n#include "base/a.h"\n',
    "src/ops/testing/a.h": '#include "ops/a.h"\n',
    "src/backends/cpu/a.h": '#include "ops/a.h"\n// no cudaMalloc here\nconst char* s = "cudaFree";\n',
    "src/backends/gpu/a.h": '#include "a.h"\n#include "backends/gpu/runtime/r.h"\n',
    "src/backends/gpu/runtime/r.h": "#include <cuda_runtime.h>\ninline void f() { cudaDeviceSynchronize(); }\n",
    "src/backends/registry.cc": '#include "backends/cpu/a.h"\n#include "backends/gpu/a.h"\n',
    "src/model/a.cc": '// #include "backends/cpu/a.h"\n#include "ops/a.h"\n',
    "apps/dsv4/main.cc": '#include "backends/registry.h"\n#include "model/a.h"\n',
}
PLANTED = [  # (what is wrong, files on top of SOUND, words of the one fault)
    ("an edge upwards", {"src/base/b.cc": '#include "tensor/a.h"\n'}, ["src/base/b.cc:1", "room base", "room tensor"]),
    ("a model that knows a backend", {"src/model/b.cc": '\n#include "backends/cpu/a.h"\n'}, ["src/model/b.cc:2", "room backends/cpu"]),
    ("a model that knows the registry", {"src/backends/registry.h": "", "src/model/b.cc": '#include "backends/registry.h"\n'}, ["src/model/b.cc:1", "room backends;"]),
    ("a backend that includes another", {"src/backends/cpu/b.cc": '#include "backends/gpu/a.h"\n'}, ["src/backends/cpu/b.cc:1", "room backends/gpu"]),
    ("angle brackets", {"src/base/b.cc": "#include <ops/a.h>\n"}, ["src/base/b.cc:1", "room ops"]),
    ("a relative path", {"src/base/b.cc": '#  include "../ops/a.h"\n'}, ["src/base/b.cc:1", "room ops"]),
    ("a room without a row", {"src/extra/b.cc": '#include "base/a.h"\n'}, ["src/extra/b.cc", "no row"]),
    ("a backend without a row", {"src/backends/npu/b.cc": '#include "backends/cpu/a.h"\n'}, ["src/backends/npu/b.cc", "no row"]),
    ("a runtime call in a kernel folder", {"src/backends/gpu/portable/b.cu": "/* x */ void g() { cudaStreamSynchronize(0); }\n"}, ["portable/b.cu:1", "cudaStreamSynchronize"]),
    ("a driver call", {"src/ops/b.cc": "void g() { cuMemAlloc(0, 1); }\n"}, ["src/ops/b.cc:1", "cuMemAlloc"]),
    ("a vendor header", {"src/backends/gpu/b.cc": "#include <cublasLt.h>\n"}, ["gpu/b.cc:1", "cublasLt.h"]),
    ("a HIP name in an application", {"apps/dsv4/b.cc": 'auto x = "a" + hipGetDevice();\n'}, ["apps/dsv4/b.cc:1", "hipGetDevice"]),
]
BAD_TABLES = [
    ("a cycle", TABLE.replace("| base | b | - |", "| base | b | ops |"), "cycle"),
    ("an engine with backends", TABLE.replace("| model | m | ops |", "| model | m | backends |"), "may not use a backend"),
    ("a backend that may use another", TABLE.replace("| backends/cpu | c | ops |", "| backends/cpu | c | ops, backends/gpu |"), "may not use a backend"),
    ("a use without a row", TABLE.replace("| tensor | t | base |", "| tensor | t | bass |"), "no row"),
    ("no table", "Nothing here.\n", "no table"),
]


def write_tree(root, files):
    for name, text in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)


def self_test():
    wrong = []
    for what, extra, words in [("a sound tree", {}, None)] + PLANTED:
        with tempfile.TemporaryDirectory() as root:
            write_tree(root, {"ARCHITECTURE.md": TABLE, **SOUND, **extra})
            faults = check_tree(root)[0]
            found = faults == [] if words is None else len(faults) == 1 and all(w in faults[0] for w in words)
            if not found:
                wrong.append(f"{what}: expected {words or 'no fault'}, found {faults}")
    for what, table, words in BAD_TABLES:
        try:
            closure(read_table(table))
            wrong.append(f"table with {what}: expected an error, found none")
        except TableError as e:
            if words not in str(e):
                wrong.append(f"table with {what}: expected '{words}', found '{e}'")
    with tempfile.TemporaryDirectory() as root:
        write_tree(root, {"ARCHITECTURE.md": TABLE})
        if not check_tree(root)[0]:
            wrong.append("an empty tree: expected a fault, found none")
    for w in wrong:
        print(f"self-test: {w}")
    print(f"check_includes self-test: {len(PLANTED) + len(BAD_TABLES) + 2} cases, {len(wrong)} wrong")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    try:
        faults, num_files, num_edges = check_tree(args.root)
    except (TableError, OSError) as e:
        print(f"check_includes: ARCHITECTURE.md: {e}")
        return 1
    for fault in faults:
        print(fault)
    print(f"check_includes: {num_files} files, {num_edges} edges inside the repository, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
