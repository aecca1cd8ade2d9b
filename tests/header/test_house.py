#!/usr/bin/env python3
"""[pure] `make house` on small made-up trees: it reports upward calls, circles, calls of later files and other folders, files
that src/dreamddp.h omits, unlisted tables, and accesses to private structs of other modules."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(HERE, "..", "..", "tools")]
import house  # noqa: E402
from cases import case, expect, run_cases  # noqa: E402

house.TABLES.clear()
SPINE = ("base/one.c", "base/two.c", "graph/three.c")
TREE = {
    "base/one.h": "int ddp__one(void);\nint ddp__two(void);\nint ddp__three(void);\n",
    "base/one.c": '#include "base/one.h"\n\nint ddp__one(void) { return 1; }\n',
    "base/two.c": '#include "base/one.h"\n\nstatic int ddp__half(void)\n{\n    return ddp__one();\n}\n\n'
                  "int ddp__two(void)\n{\n    return 2 * ddp__half();\n}\n",
    "graph/three.c": '#include "base/one.h"\n\nint ddp__three(void) { return ddp__one() + ddp__two(); }\n',
}


def tree(folder, changes=(), spine=SPINE):
    """A House of TREE with changes {path: text}."""
    for path, text in dict(TREE, **dict(changes)).items():
        at = os.path.join(folder, "src", path)
        os.makedirs(os.path.dirname(at), exist_ok=True)
        with open(at, "w", encoding="ascii") as f:
            f.write("/* A file of a test. */\n" + text)
    with open(os.path.join(folder, "src", "dreamddp.h"), "w", encoding="ascii") as f:
        f.write("".join('#include "%s"\n' % path for path in spine))
    return house.House(folder)


def expect_faults(found, *words):
    """Checks that each list of words matches one fault that contains all its words."""
    text = "\n".join(found)
    expect(len(found) == len(words), "expected %d faults, not:\n%s" % (len(words), text))
    for fault, of in zip(found, words):
        for word in of:
            expect(word in fault, "%r is not in %r" % (word, fault))


def reported(made):
    return list(house.layer_faults(made))


@case
def ordered_tree_has_no_fault(folder):
    expect_faults(reported(tree(folder)))


@case
def upward_call_is_reported(folder):
    changes = {"base/two.c": "int ddp__two(void)\n{\n    return ddp__three();\n}\n", "graph/three.c": "int ddp__three(void) { return 3; }\n"}
    expect_faults(reported(tree(folder, changes)), ["src/base/two.c uses src/graph/three.c, of a later module: ddp__three"])


@case
def include_of_a_later_module_names_the_header(folder):
    changes = {"base/two.c": '#include "graph/three.h"\n' + TREE["base/two.c"], "graph/three.h": "int ddp__three(void);\n"}
    faults = reported(tree(folder, changes))
    expect_faults(faults, ["src/base/two.c includes src/graph/three.h, of a later module"])
    expect(faults[0].endswith("module"), faults[0])


PLANNERS = {"plan/shared.c": "int ddp__shared(void) { return 1; }\n", "plan/a/one.c": "int ddp__a(void) { return ddp__shared(); }\n",
            "plan/b/two.c": "int ddp__b(void) { return ddp__shared(); }\n"}


@case
def call_of_another_folder_of_the_module_is_reported(folder):
    spine = SPINE + tuple(PLANNERS)
    expect_faults(reported(tree(folder, PLANNERS, spine)))
    changes = dict(PLANNERS, **{"plan/b/two.c": "int ddp__b(void) { return ddp__a(); }\n"})
    expect_faults(reported(tree(folder, changes, spine)),
                  ["src/plan/b/two.c uses src/plan/a/one.c, of another folder of the same module: ddp__a", "into src/plan"])


@case
def include_from_another_folder_of_the_module_is_reported(folder):
    changes = dict(PLANNERS, **{"plan/a/one.h": "int ddp__a(void);\n", "plan/b/two.h": '#include "plan/a/one.h"\n'})
    expect_faults(reported(tree(folder, changes, SPINE + tuple(PLANNERS))),
                  ["src/plan/b/two.h includes src/plan/a/one.h, of another folder of the same module;"])


@case
def file_that_the_spine_omits_is_reported(folder):
    changes = {"graph/lost.c": "int ddp__lost(void) { return 4; }\n"}
    expect_faults(reported(tree(folder, changes)), ["src/dreamddp.h does not include src/graph/lost.c"])


@case
def call_of_a_file_that_the_spine_lists_later_is_reported(folder):
    changes = {"base/one.c": "int ddp__one(void) { return ddp__two(); }\n", "base/two.c": "int ddp__two(void) { return 2; }\n"}
    words = ["src/base/one.c calls src/base/two.c, which src/dreamddp.h lists later", "ddp__two"]
    expect_faults(reported(tree(folder, changes)), words)


@case
def circle_of_two_files_is_reported(folder):
    changes = {"base/one.c": "int ddp__one(void) { return ddp__two(); }\n"}
    expect_faults(reported(tree(folder, changes)), ["lists later"],
                  ["a circle of 2 files: src/base/one.c calls ddp__two of src/base/two.c, src/base/two.c calls ddp__one of src/base/one.c"])


@case
def shortest_circle_of_a_group_is_shown(folder):
    changes = {"base/one.c": "int ddp__one(void) { return ddp__two(); }\n", "base/zero.c": "int ddp__zero(void) { return ddp__one(); }\n",
               "base/two.c": "int ddp__two(void) { return ddp__one() + ddp__zero(); }\n"}
    found = [f for f in reported(tree(folder, changes, SPINE + ("base/zero.c",))) if "circle" in f]
    expect_faults(found, ["a circle of 2 files: src/base/one.c calls ddp__two of src/base/two.c, src/base/two.c calls ddp__one of",
                          "; 3 files call each other in circles"])


@case
def call_of_an_inline_function_counts(folder):
    changes = {"base/one.h": TREE["base/one.h"] + "static inline int ddp__early(void)\n{\n    return ddp__two();\n}\n",
               "base/two.c": "int ddp__two(void) { return 2; }\n"}
    expect_faults(reported(tree(folder, changes)), ["src/base/one.h calls src/base/two.c", "ddp__two"])


@case
def function_that_a_macro_defines_counts(folder):
    changes = {"base/one.h": TREE["base/one.h"] + "#define DDP__MAKE(name, value) \\\n    int ddp__##name(void) \\\n    {        \\\n"
                             "        return value; \\\n    }\n",
               "base/one.c": "int ddp__one(void) { return ddp__made(); }\n",
               "base/two.c": "int ddp__two(void) { return 2; }\nDDP__MAKE(made, 4)\n"}
    expect_faults(reported(tree(folder, changes)), ["src/base/one.c calls src/base/two.c", "ddp__made"])


@case
def module_in_two_places_of_the_spine_is_reported(folder):
    made = tree(folder, spine=("base/one.c", "graph/three.c", "base/two.c"))
    expect_faults(reported(made), ["src/dreamddp.h lists the files of base in 2 places"])


@case
def modules_in_another_order_are_reported(folder):
    made = tree(folder, spine=("graph/three.c", "base/one.c", "base/two.c"))
    expect_faults(reported(made), ["src/dreamddp.h lists graph before base"])


TABLE = "typedef struct ddp__table {\n    int (*begin)(void);\n    int (*end)(void);\n} ddp__table;\n"
CALLER = "int ddp__one(void) { return 1; }\nint ddp__run(const ddp__table *t)\n{\n    return t->begin();\n}\n"
FILLS = {
    "an initialiser": "static const ddp__table table = {ddp__own, ddp__own};\n",
    "an assignment": "static void ddp__fill(ddp__table *t)\n{\n    t->end = ddp__own;\n}\n",
    "a parameter of an earlier module": "static void ddp__fill(ddp__table *t)\n{\n    ddp__store(t, ddp__own);\n}\n",
}


def table_tree(folder, fill, filler="graph/three.c"):
    store = "void ddp__store(ddp__table *t, int (*end)(void))\n{\n    t->end = end;\n}\n"
    changes = {"base/one.h": TREE["base/one.h"] + TABLE, "base/one.c": CALLER + store}
    changes[filler] = TREE[filler] + "static int ddp__own(void) { return 3; }\n" + fill
    return tree(folder, changes)


for how, text in FILLS.items():
    @case("table that a later module fills by %s is reported" % how)
    def unlisted(folder, fill=text):
        expect_faults(reported(table_tree(folder, fill)), ["ddp__table of src/base/one.h is a table of functions", "src/graph/three.c"])


@case
def table_that_its_own_module_fills_is_no_fault(folder):
    expect_faults(reported(table_tree(folder, FILLS["an initialiser"], "base/two.c")))


@case
def reason_without_a_table_is_reported(folder):
    made = table_tree(folder, FILLS["an initialiser"])
    expect_faults(list(house.table_faults(made, {"ddp__table": "A test."})))
    expect_faults(list(house.table_faults(made, {"ddp__table": "A test.", "ddp__gone": "A test."})), ["ddp__gone", "remove it"])


STATE = "typedef struct ddp__timing {\n    int x, y;\n} ddp__timing;\nstruct ddp_ctx {\n    ddp__timing timing;\n};\n"
ACCESSES = {
    "a chain of members": "int ddp__three(ddp_ctx *ctx)\n{\n    return ctx->timing.x;\n}\n",
    "a pointer that is declared with its value":
        "int ddp__three(ddp_ctx *ctx)\n{\n    const ddp__timing *t = &ctx->timing;\n\n    return t->x;\n}\n",
    "a pointer that is set later":
        "int ddp__three(ddp_ctx *ctx)\n{\n    ddp__timing *t;\n\n    t = &ctx->timing;\n    return t->x;\n}\n",
    "an index": "int ddp__three(ddp_ctx *ctx, const int *of)\n{\n    return of[ctx->timing.x];\n}\n",
}


def state_tree(folder, code, path="graph/three.c"):
    return tree(folder, {"base/one.h": TREE["base/one.h"] + STATE, path: code})


for how, text in ACCESSES.items():
    @case("member of another module's private struct used by %s is reported" % how)
    def foreign(folder, code=text):
        found = list(house.foreign_faults(state_tree(folder, code)))
        expect_faults(found, ["src/graph/three.c uses ddp__timing.x", "1 time;"], ["src/graph/three.c uses ddp_ctx.timing", "1 time;"])


@case
def member_of_the_result_of_a_call_is_reported(folder):
    made = {"base/one.h": TREE["base/one.h"] + STATE + "DDP_LIB ddp__timing *ddp__timing_of(ddp_ctx *ctx);\n",
            "graph/three.c": "int ddp__three(ddp_ctx *ctx)\n{\n    return ddp__half(ddp__timing_of(ddp__outer(ctx))->x);\n}\n"}
    expect_faults(list(house.foreign_faults(tree(folder, made))), ["src/graph/three.c uses ddp__timing.x", "1 time;"])


@case
def use_of_a_private_struct_by_its_own_module_is_no_fault(folder):
    code = ACCESSES["a pointer that is set later"].replace("ddp__three", "ddp__two")
    expect_faults(list(house.foreign_faults(state_tree(folder, code, "base/two.c"))))


@case
def use_of_a_modules_own_part_of_the_context_is_no_fault(folder):
    part = "typedef struct ddp__part {\n    int x;\n} ddp__part;\n"
    changes = {"base/one.h": TREE["base/one.h"] + "struct ddp_ctx {\n    struct ddp__part *part;\n};\n",
               "graph/three.c": part + "int ddp__three(ddp_ctx *ctx)\n{\n    return ctx->part->x;\n}\n"}
    expect_faults(list(house.foreign_faults(tree(folder, changes))))


@case
def use_of_a_table_of_functions_is_no_fault(folder):
    made = state_tree(folder, ACCESSES["a chain of members"])
    house.TABLES["ddp__timing"] = "A test."
    expect_faults(list(house.foreign_faults(made)), ["ddp_ctx.timing"])
    house.TABLES.clear()


@case
def longest_chain_follows_the_calls_of_functions(folder):
    chain = tree(folder).chains()["base"]
    expect(chain == [("ddp__two", "base/two.c"), ("ddp__half", "base/two.c"), ("ddp__one", "base/one.c")], str(chain))
    expect(house.chain_text(chain, True) == "ddp__two (base/two.c) > ddp__half > ddp__one (base/one.c)", house.chain_text(chain, True))
    expect(house.chain_text(chain, False) == "ddp__two (base/two.c) > ... > ddp__one (base/one.c)", house.chain_text(chain, False))


sys.exit(run_cases())
