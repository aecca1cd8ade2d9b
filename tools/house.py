#!/usr/bin/env python3
"""Measures src/ by module: lines, files, functions, the calls between files, and tables of functions.

    tools/house.py            prints each fault, then a table of modules, the ends of each longest chain of calls, and each table
                              of functions
    tools/house.py --chains   the same with all functions of each chain
    tools/house.py --check    one-line errors, exit 1: a use of a later module, a call of a file that src/dreamddp.h
                              lists later, a folder of a module that uses another one of its folders, a circle of files, a
                              module that src/dreamddp.h lists in two places or out of order, a .c that it does not include,
                              a table of functions without a reason in TABLES, a file of more than 700 lines or one
                              that does not begin with a comment, a number read or written in the program's locale, a
                              comparison that -ffast-math removes, a list that grows without ddp__reserve, an access to a member of
                              another module's private struct, a page of docs/ that names something that does not exist

A module is a folder of src/, in the order of tools/amalgamate.py. It may use those before it. A file is a
.c with its .h. One uses another if it includes it, or names a function that only the other defines. A table of functions is
a struct with function pointers. A module that fills one can be called by an earlier module, so each such table needs a reason.
tools/members.py finds the accesses to private structs, and lists the structs that any module may read.
"""
import glob
import os
import re
import sys

from amalgamate import FOLDERS, ROOT
from check_names import strip
from members import RECORDS, Members

DEFINITION = re.compile(r"^(?!typedef\b|#|extern\b)[A-Za-z_][^;{}=#\n]*?\b(ddp_\w+)\s*\((?:[^;{}]|\n)*?\)\s*\n?\{", re.M)
WORD = re.compile(r"\bddp_\w+(?=\s*[(,;)}\]])")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
DEFINE = re.compile(r"^#define (?:[^\n]*\\\n)*[^\n]*", re.M)
MACRO = re.compile(r"^#define (DDP__\w+)\(([^)]*)\) *((?:[^\n]*\\\n)*[^\n]*\{(?:[^\n]*\\\n)*[^\n]*)", re.M)  # with a body in braces
STRUCT = re.compile(r"(\btypedef\s+)?\bstruct\s*(\w*)\s*\{")
TYPEDEF = re.compile(r"\btypedef\b[^;{}()]*(?:\(\s*\*\s*(\w+)\s*\)|\b(\w+)\s*)\(")  # of a function or of a pointer to a function
POINTER = re.compile(r"\(\s*\*\s*(?:const\s+)?(\w+)(?:\[[^\]]*\])?\s*\)\s*\(")  # a member that points to a function
STORE = re.compile(r"(\w+)(?:\[[^\]]*\])?(?:->|\.)(\w+)\s*=(?!=)([^;]*);")
CALL = re.compile(r"\b(ddp_\w+)\s*\(")
MEMBER_CALL = re.compile(r"(\w+)(?:\[[^\]]*\])?(?:->|\.)(\w+)\s*\(")
VALUE = re.compile(r"\bddp_\w+\b(?!\s*\()")  # a function that is named but not called
OPENING = re.compile(r"/\*\s*\w(?:[^*]|\*(?!/))*?[.:;](?:\s|\*/)")  # a comment that begins with a sentence
PAGES = ("README.md", "CHANGELOG.md")
NAMED = re.compile(r"\b(?:ddp_|DDP_)[a-zA-Z0-9_]+|(?<!build/)\b(?:src|tests|bench|tools|examples|docs|packaging)/[\w./-]*\w")
NUMBERS = "base/number.c"  # the only file that converts numbers with libc, whose locale may have a decimal comma
IN_A_LOCALE = re.compile(r"\b(strto(?:d|f|ld)|atof|v\w*printf|\w*scanf|localeconv|setlocale)\s*\(")
PRINTS = re.compile(r'\b\w*printf\((?:[^;"]|"(?:\\.|[^"\\])*")*;')
A_REAL = re.compile(r"%[-+ #0]*[\d*]*(?:\.[\d*]+)?[aefgAEFG]")
NOT_FINITE = re.compile(r"\b(isnan|isinf|isfinite|NAN|INFINITY|HUGE_VALF?)\b")
MOST_LINES = 700  # per file
# Each table of functions that a later module fills and an earlier one calls: type and reason.
TABLES = {
    "ddp_backend": "A device is optional, so graph, exchange, measure and pipe call the one that the program opened.",
    "ddp_graph": "graph looks up built-in operators that it does not define, and pipe fetches the gradients of a tied weight.",
    "ddp_maker": "A strategy compresses a message when comm sends it, because its values are not known when it is queued.",
    "ddp_op": "An operator is a table, so that ops and programs add operators that graph runs.",
    "ddp_op_pair": "A GPU runs two operators as one kernel when graph schedules them in sequence.",
    "ddp_owner": "The owner of a segment applies the outer optimizer of a strategy before comm distributes the result.",
    "ddp_strategy_ops": "A strategy is a table, so that a program can supply its own.",
    "ddp__algorithm": "member adds one way of an all-reduce, which forwards a completed result to the survivors.",
    "ddp__carrier": "The simulator moves whole messages in simulated time, in place of the comm thread.",
    "ddp__coder": "comm sends encoded blocks without knowledge of the codes.",
    "ddp__engine_config": "An error message of comm contains the name of a layer, which only the context has.",
    "ddp__hooks": "A graph calls the hooks of a context as a training loop of the user does.",
    "ddp__hub": "The ranks of a simulation take their wires from the simulator.",
    "ddp__membership": "An elastic world is optional, so comm calls it only if the run has one.",
    "ddp__norm_chain": "The norm of a gradient is the sum over the stages of a pipeline, which only pipe has.",
    "ddp__resume_wire": "The wire accepts the connection of a joining worker, and member answers it.",
    "ddp__strategies": "A context opens a strategy by name from a list that the caller supplies.",
    "ddp__transport": "A device is optional, so exchange posts messages through the transport that device adds.",
    "ddp__wire_table": "A transport is a table, and one of them is the simulator.",
    "ddp__worker": "A checkpoint contains the state of the program and values that only the context can check.",
}
GROWTH = re.compile(r"\b(?:DDP_REALLOC|realloc)\s*\(\s*(?!NULL\b)([^,]*)")  # reallocation of an existing array
GROWS = {  # "file: array": the reason why ddp__reserve does not fit
    "base/array.c: head": "ddp__reserve itself",
    "base/platform.h: ptr": "the definition of DDP_REALLOC",
    "base/text.c: t->data": "a text ends with 0, may be in the caller's memory, and may be passed on to be freed with DDP_FREE",
    "data/images.c: m->pixels": "public arrays of ddp_images; the size is known before each file is read",
    "data/images.c: m->labels": "public arrays of ddp_images; the size is known before each file is read",
    "member/entry.c: t->data": "bytes of one state, whose size the sender sends first",
    "member/state.c: t.data": "a text enlarged once, to the known size of the copy",
    "member/state.c: x->data": "one tensor, whose size is in the file",
}


def stem(path):
    return path.rsplit(".", 1)[0]


def module(path):
    return path.split("/")[0]


def closing(text, start):
    """The index after the bracket that closes the one before start."""
    depth = 1
    while depth and start < len(text):
        depth += {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}.get(text[start], 0)
        start += 1
    return start


def arguments(text):
    """Splits the text at commas outside brackets."""
    found, depth = [""], 0
    for c in text:
        depth += (c in "({[") - (c in ")}]")
        if c == "," and not depth:
            found.append("")
        else:
            found[-1] += c
    return [a.strip() for a in found]


class House:
    """stems: "module/name"; uses[stem] = {other stem: [names]}"""

    def __init__(self, root=ROOT):
        src = os.path.join(root, "src")
        self.lines, self.text, self.functions = {}, {}, {}
        for folder in FOLDERS:
            paths = [os.path.relpath(os.path.join(at, name), src) for at, _, names in os.walk(os.path.join(src, folder))
                     for name in names]
            for path in sorted(paths):
                with open(os.path.join(src, path), encoding="ascii") as f:
                    raw = f.read()
                self.lines[path] = raw.count("\n")
                self.text[path] = raw
        self.spine = re.findall(r'^#include "([^"]+\.c)"', read(os.path.join(src, "dreamddp.h")), re.M)
        self.bare = {p: strip(t) for p, t in self.text.items()}
        self.code = {p: b + self.expanded(b) for p, b in self.bare.items()}
        self.home, self.defined = {}, {}  # {function: stems}, {path: [(function, parameters, body)]}
        self.origin = {}  # {function: the file that defines it}
        for path, bare in self.bare.items():
            self.functions[path] = [(name, lines) for name, _, _, lines in self.definitions(bare)]
            self.defined[path] = [d[:3] for d in self.definitions(self.code[path])]
            for name, _, _ in self.defined[path]:
                self.home.setdefault(name, set()).add(stem(path))
                self.origin[name] = path
        self.uses, self.files = {}, {}  # files: {(stem, other stem): (file, other file)}, of a call if there is one
        for path in self.text:
            self.find_uses(path)

    def expanded(self, bare):
        """Yields the functions that macros define at file scope, and the contents of their bodies."""
        if not hasattr(self, "macros"):
            self.macros = {m.group(1): m.groups()[1:] for b in self.bare.values() for m in MACRO.finditer(b)}
        found = []
        for m in re.finditer(r"^(DDP__\w+)\(", bare, re.M):
            if m.group(1) not in self.macros:
                continue
            parameters, body = self.macros[m.group(1)]
            names = arguments(parameters)
            values = arguments(bare[m.end():closing(bare, m.end()) - 1])
            if names[-1] == "...":
                names[-1], values[len(names) - 1:] = "__VA_ARGS__", [", ".join(values[len(names) - 1:])]
            body = re.sub(r"\s*\\\n(?: {4})?", "\n", body)
            for name, value in zip(names, values):
                body = re.sub(r"(?:##\s*)?\b%s\b(?:\s*##)?" % name, lambda _, v=value: v, body)
            found.append(body)
        return "\n".join([""] + found + [""])

    @staticmethod
    def definitions(bare):
        """[(function, its parameters, its body, its lines)]"""
        found = []
        for m in DEFINITION.finditer(bare):
            end = re.compile(r"^\}", re.M).search(bare, m.end())
            one_line = bare.find("}", m.end(), bare.find("\n", m.end()) if "\n" in bare[m.end():] else None)
            stop = one_line if one_line >= 0 and bare[one_line + 1:one_line + 2] == "\n" and (
                not end or one_line < end.start()) else end.start() if end else m.end()
            found.append((m.group(1), bare[m.end(1):m.end()], bare[m.end():stop], bare.count("\n", m.start(), stop) + 1))
        return found

    def find_uses(self, path):
        mine, code = self.uses.setdefault(stem(path), {}), self.code[path]
        for target in INCLUDE.findall(self.text[path]):
            if stem(target) != stem(path) and target in self.text:
                mine.setdefault(stem(target), set())
                self.files.setdefault((stem(path), stem(target)), (path, target))
        # a header declares functions of other files too, so only its inline functions and macros count as calls
        if path.endswith(".h"):
            code = "\n".join([body for _, _, body in self.defined[path]] + DEFINE.findall(code))
        for name in sorted(set(WORD.findall(code)) - {name for name, _, _ in self.defined[path]}):
            homes = self.home.get(name, ())
            if len(homes) == 1:
                other = next(iter(homes))
                if other != stem(path):
                    self.files[stem(path), other] = path, self.origin[name]
                    mine.setdefault(other, set()).add(name)

    def upward(self):
        """[(file, later file, names)]"""
        return sorted((a, b, sorted(names)) for a, to in self.uses.items() for b, names in to.items()
                      if FOLDERS.index(module(b)) > FOLDERS.index(module(a)))

    def later(self):
        """[(file, file of the same module that the spine lists later, names)]. Headers without a .c are read
        first."""
        place = {stem(path): i for i, path in enumerate(self.spine)}
        return sorted((a, b, sorted(names)) for a, to in self.uses.items() for b, names in to.items()
                      if names and module(a) == module(b)
                      and place.get(b, -1) > place.get(a, -1))

    def across(self):
        """[(file, file of another folder of the same module, names)]. Files directly in the module are shared."""
        return sorted((a, b, sorted(names)) for a, to in self.uses.items() for b, names in to.items()
                      if module(a) == module(b) and a.count("/") == b.count("/") == 2
                      and os.path.dirname(a) != os.path.dirname(b))

    def orphans(self):
        """The .c files that the spine does not include."""
        return sorted(path for path in self.text if path.endswith(".c") and path not in self.spine)

    def spine_faults(self):
        """Yields a one-line error for each module that the spine lists in two places or out of order."""
        listed = [module(path) for path in self.spine]
        listed = [m for i, m in enumerate(listed) if m in FOLDERS and (i == 0 or listed[i - 1] != m)]
        for m in sorted(set(listed), key=FOLDERS.index):
            if listed.count(m) > 1:
                yield "src/dreamddp.h lists the files of %s in %d places; list them in one" % (m, listed.count(m))
        for a, b in zip(listed, listed[1:]):
            if FOLDERS.index(a) > FOLDERS.index(b) and listed.count(a) == listed.count(b) == 1:
                yield "src/dreamddp.h lists %s before %s; tools/amalgamate.py has the other order" % (a, b)

    def chains(self):
        """Returns {module: [(function, file)]}, its longest chain of calls. In a recursion each function counts
        once."""
        home = self.origin
        calls = {name: sorted({g for g in CALL.findall(body) if g != name and g in home and module(home[g]) == module(path)})
                 for path, found in self.defined.items() for name, _, body in found}
        longest, open_calls = {}, set()

        def chain(name):
            if name not in longest:
                open_calls.add(name)
                below = [chain(g) for g in calls[name] if g not in open_calls]
                open_calls.discard(name)
                longest[name] = [name] + max(below, key=len, default=[])
            return longest[name]
        found = {}
        for name in sorted(calls):
            at = module(home[name])
            if len(chain(name)) > len(found.get(at, [])):
                found[at] = chain(name)
        return {at: [(name, home[name]) for name in names] for at, names in found.items()}

    def in_a_locale(self):
        """Yields (file, line, function) of calls that may convert a number with the decimal point of the program's
        locale."""
        for path, raw in self.text.items():
            if path == NUMBERS:
                continue
            for m in IN_A_LOCALE.finditer(self.bare[path]):
                yield path, self.bare[path].count("\n", 0, m.start()) + 1, m.group(1)
            for m in PRINTS.finditer(raw):
                if A_REAL.search(m.group(0).replace("%%", "")):
                    yield path, raw.count("\n", 0, m.start()) + 1, m.group(0).split("(")[0]

    def circles(self):
        """Returns lists of files of one module that use each other. Only calls count, because a header may serve
        many files."""
        index, low, stack, found, count = {}, {}, [], [], [0]

        def visit(v):
            index[v] = low[v] = count[0]
            count[0] += 1
            stack.append(v)
            for w, names in self.uses[v].items():
                if not names or w.split("/")[0] != v.split("/")[0]:
                    continue
                if w not in index:
                    visit(w)
                    low[v] = min(low[v], low[w])
                elif w in stack:
                    low[v] = min(low[v], index[w])
            if low[v] == index[v]:
                group = []
                while not group or group[-1] != v:
                    group.append(stack.pop())
                if len(group) > 1:
                    found.append(sorted(group))
        for v in sorted(self.uses):
            if v not in index:
                visit(v)
        return found


class Tables:
    """Structs with function pointers: declared[type] = (file, its members), filled[type] = files, called[type] = files"""

    def __init__(self, house):
        self.house, self.declared, self.filled, self.called = house, {}, {}, {}
        self.types = {}  # {tag or typedef: type}
        pointers = {a or b for text in house.code.values() for a, b in TYPEDEF.findall(text)}
        for path, text in house.code.items():
            self.find_types(path, text, pointers)
        types = "|".join(self.types) or "$^"
        variables = re.compile(r"\b(%s)\b[\s*]*((?:\w+\s*,[\s*]*)*\w+)\s*[,;)=\[]" % types)
        self.initialiser = re.compile(r"\b(%s)\s+\w+\s*(?:\[[^\]]*\])?\s*=\s*\{" % types)
        self.variables = {path: {} for path in house.code}  # {path: {variable: types}}
        self.header_variables = {}
        for path, text in house.code.items():
            for of in [self.variables[path]] + ([self.header_variables] if path.endswith(".h") else []):
                for name, list_of in variables.findall(text):
                    for variable in re.findall(r"\w+", list_of):
                        of.setdefault(variable, set()).add(self.types[name])
        self.setters = {name: found for path, bodies in house.defined.items() for name, parameters, body in bodies
                        for found in [self.stored_parameters(path, parameters, body)] if found}
        for path, text in house.code.items():
            self.find_fills(path, text)

    def find_types(self, path, text, pointers):
        for m in STRUCT.finditer(text):
            end = closing(text, m.end())
            body, behind = text[m.end():end], re.match(r"\s*(\w*)", text[end:]).group(1)
            name = m.group(2) or behind
            members = set(POINTER.findall(body)) | {b for a, b in re.findall(r"\b(\w+)\s*\*?\s*(\w+)\s*[;,]", body)
                                                    if a in pointers}
            if members:
                self.declared[name] = (path, members)
                self.types.update({name: name, behind if m.group(1) else name: name})

    def type_of(self, path, owner, member):
        """The table type whose member owner->member is. The file, or else a header, declares owner with that type."""
        for variables in (self.variables[path], self.header_variables):
            for name in sorted(variables.get(owner, ())):
                if member in self.declared[name][1]:
                    return name
        return None

    def functions_in(self, text):
        return [name for name in VALUE.findall(text) if name in self.house.home]

    def stored_parameters(self, path, parameters, body):
        """Returns [(position, table)] of the parameters that a function stores in a table."""
        names = [(POINTER.findall(p) + re.findall(r"(\w+)(?:\[\w*\])?$", p) + [""])[0]
                 for p in arguments(parameters[parameters.index("(") + 1:parameters.rindex(")")])]
        found = [(owner, member, value.strip()) for owner, member, value in STORE.findall(body)]
        return [(names.index(value), self.type_of(path, owner, member)) for owner, member, value in found
                if value in names and self.type_of(path, owner, member)]

    def find_fills(self, path, text):
        for m in self.initialiser.finditer(text):
            if self.functions_in(text[m.end():closing(text, m.end())]):
                self.filled.setdefault(self.types[m.group(1)], set()).add(path)
        for owner, member, value in STORE.findall(text):
            if self.functions_in(value) and self.type_of(path, owner, member):
                self.filled.setdefault(self.type_of(path, owner, member), set()).add(path)
        for m in CALL.finditer(text):
            if m.group(1) in self.setters:
                given = arguments(text[m.end():closing(text, m.end()) - 1])
                for position, name in self.setters[m.group(1)]:
                    if self.functions_in(given[position] if position < len(given) else ""):
                        self.filled.setdefault(name, set()).add(path)
        for owner, member in MEMBER_CALL.findall(text):
            if self.type_of(path, owner, member):
                self.called.setdefault(self.type_of(path, owner, member), set()).add(path)

    def upward(self):
        """Returns [(type, file that declares it, files that fill it)] of tables that a module calls and a later
        one fills."""
        order = lambda path: FOLDERS.index(module(path))
        return sorted((name, at, sorted(self.filled[name])) for name, (at, _) in self.declared.items()
                      if name in self.filled and
                      min(map(order, self.called.get(name, {at}))) < max(map(order, self.filled[name])))


def shortest_circle(house, group):
    """Returns the files of a shortest circle of calls through the first file of a group that calls itself in a
    circle."""
    first, paths = group[0], [[group[0]]]
    for path in paths:
        for b in sorted(b for b, names in house.uses[path[-1]].items() if names and b in group):
            if b == first:
                return path
            if not any(b in p for p in paths):
                paths.append(path + [b])
    return group


def calls_of(house, circle):
    """Returns "src/a.c calls f of src/b.c, src/b.c calls g of src/a.c"."""
    said = []
    for a, b in zip(circle, circle[1:] + circle[:1]):
        at, to = house.files[a, b]
        said.append("src/%s calls %s of src/%s" % (at, ", ".join(sorted(house.uses[a][b])), to))
    return ", ".join(said)


def hand_written_growth(house):
    """Yields (file, line, array) of each array that grows without ddp__reserve, and without a reason in GROWS."""
    for path, bare in house.bare.items():
        for m in GROWTH.finditer(bare):
            if "%s: %s" % (path, m.group(1).strip()) not in GROWS:
                yield path, bare.count("\n", 0, m.start()) + 1, m.group(1).strip()


def growth_faults(house):
    for path, line, array in hand_written_growth(house):
        yield "src/%s:%d enlarges %s without ddp__reserve of src/base/array.h; use that function" % (path, line, array)
    there = {"%s: %s" % (path, m.group(1).strip()) for path, bare in house.bare.items() for m in GROWTH.finditer(bare)}
    for key in sorted(set(GROWS) - there):
        yield "GROWS of tools/house.py lists src/%s, which does not grow; remove it" % key


def foreign_accesses(house):
    """Yields (file, struct, member, number of accesses) of each member of another module's private struct. TABLES
    are exempt, because other modules call tables of functions."""
    for (struct, path), counter in sorted(Members(house).foreign().items()):
        if struct.split(".")[0] not in TABLES:
            for member, n in sorted(counter.items()):
                yield path, struct, member, n


def foreign_faults(house):
    for path, struct, member, n in foreign_accesses(house):
        yield "src/%s uses %s.%s, a member of another module's private struct, %d time%s; call a function of that module, " \
              "or add a reason to RECORDS in tools/members.py if the struct only carries values" % (
                  path, struct, member, n, "" if n == 1 else "s")


def record_faults(house):
    known = Members(house).structs
    for name in sorted(set(RECORDS) - set(known)):
        yield "%s in RECORDS of tools/members.py does not exist; remove it" % name


def quantile(sizes, q):
    return sorted(sizes)[min(len(sizes) - 1, int(q * len(sizes)))] if sizes else 0


def table(house, chains_whole=False):
    circles, upward, chains = house.circles(), house.upward(), house.chains()
    print("%-10s %7s %6s %10s %7s %5s %8s %7s %8s %6s" % ("module", "lines", "files", "functions", "median", "90 %", "longest",
                                                         "upward", "circles", "chain"))
    for name in FOLDERS + ["all"]:
        paths = [p for p in house.text if name in ("all", module(p))]
        if not paths:
            continue
        sizes = [n for p in paths for _, n in house.functions[p]]
        print("%-10s %7d %6d %10d %7d %5d %8d %7d %8d %6d" % (
            name, sum(house.lines[p] for p in paths), len(paths), len(sizes), quantile(sizes, 0.5), quantile(sizes, 0.9),
            max(sizes or [0]), sum(name in ("all", module(a)) for a, _, _ in upward),
            sum(name in ("all", module(c[0])) for c in circles),
            max(len(chain) for at, chain in chains.items() if name in ("all", at)) if chains else 0))
    print("upward calls: %d, circles: %d, growth without ddp__reserve: %d, foreign accesses: %d" % (
        len(upward), len(circles), len(list(hand_written_growth(house))), sum(n for _, _, _, n in foreign_accesses(house))))
    for name in FOLDERS:
        if name in chains:
            print("%s: a chain of %d calls: %s" % (name, len(chains[name]), chain_text(chains[name], chains_whole)))


def chain_text(chain, whole):
    """The functions of a chain, each with its file if it differs from the caller's. If not whole, only the first
    and the last one."""
    files = [""] + [file for _, file in chain]
    said = [name + (" (%s)" % file if file != before else "") for (name, file), before in zip(chain, files)]
    return " > ".join(said if whole or len(chain) < 3 else [said[0], "...", "%s (%s)" % chain[-1]])


def tables(house):
    for name, at, files in Tables(house).upward():
        print("table %s of %s (src/%s), filled by %s: %s" % (name, module(at), at, " ".join("src/" + f for f in files),
                                                            TABLES.get(name, "no reason")))


def table_faults(house, reasons=None):
    reasons = TABLES if reasons is None else reasons
    found = Tables(house).upward()
    for name, at, files in found:
        if name not in reasons:
            yield "%s of src/%s is a table of functions that a later module fills: %s; call that module from a later one, " \
                  "or add a reason to TABLES in tools/house.py" % (name, at, " ".join("src/" + f for f in files))
    for name in sorted(set(reasons) - {name for name, _, _ in found}):
        yield "%s in TABLES of tools/house.py is not a table of functions that a later module fills; remove it" % name


def layer_faults(house):
    for a, b, names in house.upward():
        at, to = house.files[a, b]
        yield "src/%s %s src/%s, of a later module%s" % (at, "uses" if names else "includes", to, listed(names))
    for a, b, names in house.across():
        at, to = house.files[a, b]
        yield "src/%s %s src/%s, of another folder of the same module%s; put the shared code directly into src/%s" % (
            at, "uses" if names else "includes", to, listed(names), module(a))
    for a, b, names in house.later():
        yield "src/%s calls src/%s, which src/dreamddp.h lists later: %s" % (*house.files[a, b], ", ".join(names))
    for path in house.orphans():
        yield "src/dreamddp.h does not include src/%s; add it there" % path
    for fault in house.spine_faults():
        yield fault
    for c in house.circles():
        circle = shortest_circle(house, c)
        more = "" if len(circle) == len(c) else "; %d files call each other in circles" % len(c)
        yield "a circle of %d files: %s%s" % (len(circle), calls_of(house, circle), more)
    for fault in table_faults(house):
        yield fault


def listed(names):
    return ": " + ", ".join(names) if names else ""


def faults(house):
    for fault in layer_faults(house):
        yield fault
    for path, lines in house.lines.items():
        if lines > MOST_LINES:
            yield "src/%s has %d lines; %d at most" % (path, lines, MOST_LINES)
    for path, text in house.text.items():
        if not opens_with_a_sentence(text):
            yield "src/%s does not begin with a comment that states its purpose" % path
    for path, line, call in house.in_a_locale():
        yield "src/%s:%d calls %s, which depends on the locale; use ddp__format or ddp__number" % (path, line, call)
    for path, bare in house.bare.items():
        for m in [] if path.startswith("cuda/") else NOT_FINITE.finditer(bare):  # nvcc does not assume finite numbers in kernels
            yield "src/%s:%d names %s; -ffast-math removes code that depends on it: use ddp__finite, ddp__is_nan, DBL_MAX" % (
                path, bare.count("\n", 0, m.start()) + 1, m.group(1))
    yield from growth_faults(house)
    yield from foreign_faults(house)
    yield from record_faults(house)
    for page, line, name in pages():
        yield "%s:%d names %s, which does not exist" % (page, line, name)


def opens_with_a_sentence(text):
    return bool(OPENING.match(text))


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def pages():
    """Yields (page, line number, name) of functions, constants and files that do not exist. Names in a table under
    **Removed** are exempt, and so is the code of the recipes, which tests/programs/test_recipes.py compiles."""
    folder = os.path.join(ROOT, "docs")
    public = re.compile(r"\b(?:ddp_|DDP_)[a-zA-Z0-9_]+")
    names = set(public.findall(read(os.path.join(ROOT, "CMakeLists.txt"))))
    for top in ("src", "examples", "tests", "tools"):
        for at, _, files in os.walk(os.path.join(ROOT, top)):
            for f in files:
                if f.endswith((".h", ".c", ".cuh", ".cu", ".py", ".sh", ".mk")):
                    names |= set(public.findall(read(os.path.join(at, f))))
    found = [os.path.join(at, f) for at, _, files in os.walk(folder) for f in files if f.endswith(".md")]
    for path in [os.path.join(ROOT, p) for p in PAGES] + sorted(found):
        removed, code, recipe = False, False, os.path.basename(os.path.dirname(path)) == "contributing"
        for number, line in enumerate(read(path).splitlines(), 1):
            removed = line.startswith("### Removed") or (removed and not line.startswith("#"))
            code ^= line.startswith("```")
            adds = recipe and (code or line.startswith("New file "))
            for name in [] if removed or adds else NAMED.findall(line):
                there = name in names or (name.endswith("_") and any(n.startswith(name) for n in names)) \
                    if name[:4] in ("ddp_", "DDP_") else bool(glob.glob(os.path.join(ROOT, name) + "*"))
                if not there:
                    yield os.path.relpath(path, ROOT), number, name


def main(argv):
    if argv not in ([], ["--check"], ["--chains"]):
        sys.stderr.write(__doc__)
        return 2
    house, check = House(), argv == ["--check"]
    found = list(faults(house))
    for f in found:
        print("house: " + f, file=sys.stderr if check else sys.stdout)
    if not check:
        table(house, argv == ["--chains"])
        tables(house)
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
