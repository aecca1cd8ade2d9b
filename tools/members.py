"""Counts accesses to members of structs of other modules, for tools/house.py.

A struct belongs to the module that declares it. Modules call each other's functions. They do not read or write the
members of each other's structs. Public structs (ddp_ without a second underscore) are exempt, and so are records: structs
that carry values from one module to another and have no state of their own.

Types are found in the source text: structs and their members, then the variables of each function and the results of calls,
then each chain a->b.c or f(x)->b.c.
"""
import collections
import re

# Structs that only carry values: configurations that a caller fills, results, and data of a wire or a file.
RECORDS = {
    "ddp__act": "an action of an emulated link at a time, made from a script",
    "ddp__cut": "the cut of a model into stages, made by src/pipe",
    "ddp__cut_span": "a part of a layer that is split between stages",
    "ddp__own_state": "a tensor of a strategy, listed for checkpoints",
    "ddp__addr": "an address and its size",
    "ddp__compared": "an array to compare, filled by the caller, and the result",
    "ddp__digest": "a value: a hash of 128 bits",
    "ddp__engine_config": "filled by the caller that opens an engine",
    "ddp__env": "a result: rank, world and address that a launcher set",
    "ddp__message_cost": "a value: what a message costs",
    "ddp__overlap_costs": "the input of a planner, filled by the caller",
    "ddp__overlap_plan": "a plan, filled by the caller",
    "ddp__epoch_info": "a result: the members of an epoch",
    "ddp__frame": "a message on the wire",
    "ddp__hello": "a message on the wire",
    "ddp__sizes": "two values: the sizes that decide about an all-reduce",
    "ddp__incidents": "lines of a script",
    "ddp__incident": "a line of a script",
    "ddp__join_config": "filled by the caller that opens the admission of workers",
    "ddp__join_layout": "filled by the caller that opens the admission of workers",
    "ddp__join_place": "a result: the rank and step of a joining worker",
    "ddp__join_says": "a message on the wire",
    "ddp__json": "a value of a file, read member by member",
    "ddp__layer_cost": "sums over a model in stages, gathered from its ranks",
    "ddp__link": "rates and times of an emulated link",
    "ddp__links": "emulated links, made from a configuration",
    "ddp__checkpoint_chose": "a result: the strategy of a checkpoint",
    "ddp__loaded": "a result: the contents of a checkpoint",
    "ddp__mapped": "a file in memory",
    "ddp__net_stats": "a result: statistics of an engine",
    "ddp__muon_desk": "memory and threads that the caller of an update passes to the optimizer muon",
    "ddp__netspec": "a parsed link specification: a rate, a delay and a jitter",
    "ddp__offer": "an array that a rank of the same process shares, with the progress of the others; wire allocates it",
    "ddp__op_record": "a result: an operation, for a dump",
    "ddp__op_span": "a result: when an operation ran",
    "ddp__oplog": "a result: operations, for a dump",
    "ddp__path": "delays of an emulated link",
    "ddp__peer_record": "a result: a peer, for a dump",
    "ddp__rendezvous": "filled by the caller that opens a wire",
    "ddp__same": "a name and a number that ranks compare",
    "ddp__setting": "a name and a number that ranks compare",
    "ddp__share": "a result: the file of a checkpoint that a rank loads",
    "ddp__tcp_config": "filled by the caller that opens a wire",
    "ddp__tensor": "an array in a checkpoint",
    "ddp__unit": "a registered layer, made by context/layers.c and read by all",
    "ddp__text": "a growing text and its length",
    "ddp__wire": "the functions of a transport and their properties; its state is in the transport",
    "ddp__worker": "the arrays of a checkpoint, listed by their owner",
}
# member and sim run inside the comm thread, under its lock. All three share the state in comm/state.h.
SHARED = {"comm/state.h": ("member", "sim"), "graph/host.h": ("context",)}
STRUCT = re.compile(r"(typedef\s+)?struct\s*(\w*)\s*\{")
DECLARATION = re.compile(r"\b(?:struct\s+)?(ddp_\w+)\s+([^;(){}=]*?)\s*(?=[;=,)\[])")
CHAIN = re.compile(r"(?<![\w.>])([A-Za-z_]\w*)((?:\s*(?:->|\.)\s*[A-Za-z_]\w*)+)")
RESULT = re.compile(r"^(?:DDP_API|DDP_LIB|static)\s+(?:inline\s+)?(?:const\s+)?(?:struct\s+)?(ddp_\w+)\s*\*\s*(ddp_\w+)\(", re.M)
CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\([^()]*\)((?:\s*(?:->|\.)\s*[A-Za-z_]\w*)*)")
BRACKETS = re.compile(r"\[[^\[\]]*\]")


def closing(text, i):
    depth = 0
    for j in range(i, len(text)):
        depth += (text[j] == "{") - (text[j] == "}")
        if depth == 0:
            return j
    return len(text)


def members_of(body):
    """Returns {member: its type} from the lines of a struct without nested structs."""
    found = {}
    while BRACKETS.search(body):
        body = BRACKETS.sub("", body)
    for line in body.split(";"):
        line = " ".join(re.sub(r"\b(const|volatile|struct|unsigned|static)\b", " ", line).split())
        function = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", line)
        if function:
            found[function.group(1)] = None
            continue
        m = re.match(r"([\w.]+)\s*(.*)$", line)
        for name in m.group(2).split(",") if m else []:
            name = name.strip(" *").split(":")[0].strip()
            if re.match(r"\w+$", name):
                found[name] = m.group(1)
    return found


class Members:
    """structs[type] = {member: type}; home[type] = file; alias[name] = type"""

    def __init__(self, house):
        self.house, self.structs, self.home, self.alias, self.result = house, {}, {}, {}, {}
        for path, text in house.bare.items():
            if not path.startswith("cuda/"):
                text = re.sub(r"^\s*#.*(?:\\\n.*)*$", "", text, flags=re.M)
                for m in STRUCT.finditer(text):
                    self.read_struct(path, text, m)
                self.result.update((m.group(2), m.group(1)) for m in RESULT.finditer(text))

    def read_struct(self, path, text, m):
        end = closing(text, m.end() - 1)
        body, behind = text[m.end():end], re.match(r"\s*(\w*)", text[end + 1:]).group(1)
        name = m.group(2) or (behind if m.group(1) else "")
        if not name.startswith("ddp"):
            return
        inner = re.search(r"(?:struct|union)\s*\w*\s*\{", body)
        own = {}
        while inner:  # its members belong to the outer struct, or to a type that only the outer struct contains
            stop = closing(body, inner.end() - 1)
            label = re.match(r"\s*\**\s*(\w*)[^;]*;", body[stop + 1:])
            nested = members_of(body[inner.end():stop])
            if label.group(1):
                self.structs[name + "." + label.group(1)] = nested
                self.home[name + "." + label.group(1)] = path
                own[label.group(1)] = name + "." + label.group(1)
            else:
                own.update(nested)
            body = body[:inner.start()] + body[stop + 1 + label.end():]
            inner = re.search(r"(?:struct|union)\s*\w*\s*\{", body)
        own.update(members_of(body))
        self.structs[name], self.home[name] = own, path
        for known in (m.group(2), behind if m.group(1) else ""):
            if known:
                self.alias[known] = name

    def variables(self, function):
        found = {}
        for m in DECLARATION.finditer(function):
            if m.group(1) in self.alias:
                for name in m.group(2).split(","):
                    name = name.replace("const", " ").strip(" *\n")
                    if re.match(r"\w+$", name):
                        found.setdefault(name, m.group(1))
        for m in re.finditer(r"\b(?:struct\s+)?(ddp_\w+)\s+([^;(){}]*?);", function):
            if m.group(1) in self.alias:
                for name in re.sub(r"=[^,;]*", "", m.group(2)).split(","):
                    name = BRACKETS.sub("", name).replace("const", " ").strip(" *\n")
                    if re.match(r"\w+$", name):
                        found.setdefault(name, m.group(1))
        return found

    def counts(self, struct, path):
        """True if an access in path to a member of struct is a foreign one."""
        home = self.home[struct]
        mine, owner = path.split("/")[0], home.split("/")[0]
        private = struct.startswith("ddp__") or struct.split(".")[0] == "ddp_ctx"
        return private and mine != owner and struct not in RECORDS and mine not in SHARED.get(home, ())

    def own_part(self, struct, member, path):
        """True if a member of a context is the struct that the module of path stores in it."""
        kind = self.alias.get(self.structs[struct][member])
        return struct == "ddp_ctx" and kind is not None and self.home[kind].split("/")[0] == path.split("/")[0]

    def chains(self, text, variables):
        """Returns [(type, "->member.member")] of variables, and of the results of calls from the innermost
        outwards."""
        found = [(variables.get(m.group(1)), m.group(2)) for m in CHAIN.finditer(text)]
        while CALL.search(text):
            found += [(self.result.get(m.group(1)), m.group(2)) for m in CALL.finditer(text) if m.group(2)]
            text = CALL.sub("", text)
        return found

    def foreign(self):
        """Returns {(struct, file): Counter of members}."""
        found = collections.defaultdict(collections.Counter)
        for path, bodies in self.house.defined.items():
            if not path.endswith(".c") or path.startswith("cuda/"):
                continue
            for _, parameters, body in bodies:
                function = parameters + body
                variables = self.variables(function)
                texts, inside = [function], BRACKETS.findall(function)
                while inside:
                    texts[0] = BRACKETS.sub("", texts[0])
                    texts += [t[1:-1] for t in inside]
                    inside = BRACKETS.findall(texts[0])
                for text in texts:
                    for name, chain in self.chains(text, variables):
                        struct = self.alias.get(name)
                        for member in re.findall(r"[A-Za-z_]\w*", chain):
                            if struct is None or member not in self.structs[struct]:
                                break
                            if self.counts(struct, path) and not self.own_part(struct, member, path):
                                found[struct, path][member] += 1
                            kind = self.structs[struct][member]
                            struct = kind if kind in self.structs else self.alias.get(kind)
        return found
