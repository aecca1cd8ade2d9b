#!/usr/bin/env python3
"""[pure] tools/check_sass.py on small listings in the format of nvdisasm: it reports left factors of wgmma that an iteration may
not have written, spills in the loops of attention, and serialised products. Also the architectures of the GPU library. No GPU
tool is needed."""
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(HERE, "..", "..", "tools")]
import check_sass  # noqa: E402
from cases import case, expect, run_cases  # noqa: E402

CHECK = os.path.join(HERE, "..", "..", "tools", "check_sass.py")
FLASH = "_Z12ddp__k_flashI13__nv_bfloat16Li64ELi1ELi64ELi1ELi256ELi1EEvPT_Pf10ddp__tilesIS1_E10ddp__heads"
SCORES = "HGMMA.64x64x16.F32.BF16 R24, R88, gdesc[UR20], RZ, !UPT"
AGAIN = ["ISETP.GE.AND P0, PT, R15, R23, PT", "@!P0 BRA `(.L_x_1)", "EXIT"]
PACK = ["F2FP.BF16.F32.PACK_AB R%d, R25, R24" % r for r in range(88, 92)]
# From the forward kernel that loaded Q into registers at the first key tile, by nvcc 13.0: the scores of the first tile
# read Q, and those of later tiles read P.
LOST = [".L_x_1", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R11+UR4+0xc000], R10", "@!P0 BRA `(.L_x_2)", ".L_x_3",
        "@!P2 LDSM.16.M88.4 R88, [R16]", SCORES, "WARPGROUP.DEPBAR.LE gsb0, 0x0", "F2FP.BF16.F32.PACK_AB R88, R25, R24",
        "HGMMA.64x64x16.F32.BF16 R56, R88, gdesc[UR20].tnspB, R56, gsb0", *AGAIN,
        ".L_x_2", "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R11+UR4+0xc000], R10", "@!P0 BRA `(.L_x_2)", "BRA `(.L_x_3)"]


def listing(body, name=FLASH, arch="sm_90a"):
    """nvdisasm's output for a kernel. An item of body is a label, or an instruction after its optional predicate."""
    lines = ["\t.target\t" + arch, "//--------------------- .text.%s --------------------------" % name, ".text.%s:" % name]
    at = 0
    for one in body:
        lines.append(one + ":" if one.startswith(".") else "        /*%04x*/                   %s ;" % (at, one))
        at += 0 if one.startswith(".") else 16
    return lines


def faults(body, **given):
    return [message for _, message in check_sass.check(listing(body, **given), "test")[1]]


def lost(body):
    """The registers that are reported as lost."""
    return [message.split(",")[0] for message in faults(body) if "operand" in message]


@case
def factors_loaded_in_the_first_iteration_are_reported(folder):
    found = faults(LOST)
    expect(len(found) == 2 and "R88, an operand of \"0030: HGMMA" in found[0] and "by \"0050: F2FP" in found[0], found)
    expect("R89, an operand of \"0060: HGMMA" in found[1], found) # P has four registers, of which the loop writes one


@case
def factors_written_in_every_iteration_pass(folder):
    expect(faults([".L_x_1", *PACK, SCORES, *PACK, *AGAIN]) == [], "written before the product")
    expect(faults([".L_x_1", "LDSM.16.M88.4 R88, [R16]", SCORES, *AGAIN]) == [], "four registers by one load")
    both = [".L_x_1", "@P1 BRA `(.L_x_2)", *PACK, "BRA `(.L_x_3)", ".L_x_2", *PACK, ".L_x_3", SCORES, *AGAIN]
    expect(faults(both) == [], "written on both paths")


@case
def factors_written_before_the_loop_pass(folder):
    expect(faults([*PACK, ".L_x_1", SCORES, "FADD R24, R88, R24", "STS [R88], R24", "ISETP.GE.AND P1, PT, R88, R2, PT", *AGAIN]) == [],
           "the loop only reads them")
    expect(faults([*PACK, SCORES, *PACK, SCORES, "EXIT"]) == [], "no loop")


@case
def factors_written_on_one_path_are_reported(folder):
    expect(lost([".L_x_1", "@P1 BRA `(.L_x_2)", *PACK, ".L_x_2", SCORES, *AGAIN]) == ["R88"], "a branch around the writes")
    expect(lost([".L_x_1", *PACK[:3], "@P1 " + PACK[3], SCORES, *AGAIN]) == ["R91"], "a predicate")
    expect(lost([".L_x_1", *PACK[:3], SCORES, PACK[3], *AGAIN]) == ["R91"], "written after the product")


@case
def writes_of_every_width_are_found(folder):
    for first, write in ((90, "LDS.64 R90, [R2]"), (88, "LDG.E.128 R88, [R2.64]"), (90, "IMAD.WIDE R90, R2, R3, R4"),
                         (90, "CS2R R90, SRZ"), (90, "DADD R90, R2, R4"), (88, "HMMA.16816.F32.BF16 R88, R4, R8, R12"),
                         (91, "SHFL.BFLY PT, R91, R2, 0x1, 0x1f"), (91, "LOP3.LUT P1, R91, R2, R3, RZ, 0xc0, !PT"),
                         (88, "HGMMA.64x64x16.F32.BF16 R60, gdesc[UR4], R60"), (88, "HGMMA.64x128x16.F16 R60, gdesc[UR4], R60")):
        expect(lost([*PACK, ".L_x_1", SCORES, write, *AGAIN]) == ["R%d" % first], write)
    expect(lost([*PACK, ".L_x_1", SCORES, "HGMMA.64x32x16.F32.BF16 R60, gdesc[UR4], R60", "LDS.64 R92, [R2]", *AGAIN]) == [],
           "registers next to the factor")


@case
def every_loop_around_a_product_is_checked(folder):
    inner = [".L_x_2", SCORES, "@P1 BRA `(.L_x_2)"]
    expect(lost([*PACK, ".L_x_1", *inner, *PACK, *AGAIN]) == ["R88"], "written after the inner loop, in the outer one")
    expect(faults([".L_x_1", *PACK, *inner, *AGAIN]) == [], "written before the inner loop")


@case
def spills_in_loops_of_attention_are_reported(folder):
    body = [*PACK, ".L_x_1", SCORES, "STL [R1+0x10], R2", "LDL.LU R2, [R1+0x10]                   (*\"SpillRefill\"*)", *AGAIN]
    expect(faults(body) == ["spill in a loop that multiplies: \"0050: STL [R1+0x10], R2\""], faults(body))
    expect(check_sass.check(listing(body), "test")[0]["reloads in their loops"] == 1, "reloads are counted")
    expect(faults(["STL [R1], R2", *PACK, ".L_x_1", SCORES, *AGAIN]) == [], "a spill outside the loop")
    expect(faults([SCORES, ".L_x_1", "STL [R1], R2", *AGAIN]) == [], "a loop that does not multiply")
    other = listing(body, name="ddp__k_other") + listing([SCORES, "EXIT"])
    expect(check_sass.check(other, "test")[1] == [], "a kernel that is not attention")


@case
def listings_that_cannot_show_a_fault_are_reported(folder):
    expect(faults(["EXIT"]) == ["no wgmma in code for sm_90a"], "no wgmma")
    expect(faults(["EXIT"], arch="sm_80") == [], "sm_80 has none")
    expect(faults([SCORES, "EXIT"], name="ddp__k_other") == ["no attention kernel"], "no attention")


@case
def the_program_reports_faults_and_messages_of_ptxas(folder):
    good, bad, log = (os.path.join(folder, n) for n in ("good.sass", "bad.sass", "log.txt"))
    for path, lines in ((good, listing([SCORES, "EXIT"])), (bad, listing(LOST)), (log, [
            "ptxas info    : Used 32 registers", "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async "
            "instructions are serialized due to insufficient register resources in the function 'k'"])):
        with open(path, "w", encoding="ascii") as f:
            f.write("\n".join(lines) + "\n")
    for words, code, text in (([good], 0, "1 wgmma, 1 attention kernels, 0 reloads in their loops, 0 faults"),
                              ([good, bad], 1, "ddp__k_flash"), (["--log", log, good], 1, "(C7510)"), (["--log", good, good], 0, "0 faults")):
        r = subprocess.run([sys.executable, CHECK, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        expect(r.returncode == code and text in r.stdout, (words, r.returncode, r.stdout))


@case
def library_has_ptx_that_later_gpus_accept(folder):
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "NVCC_ARCHS")}
    r = subprocess.run(["make", "-n", "-B", "build/lib/libdreamddp_cuda.so"], cwd=os.path.join(HERE, "..", ".."), env=env,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    codes = re.findall(r"-gencode arch=compute_(\w+),code=(\w+)", r.stdout)
    expect(("90a", "sm_90a") in codes, codes)
    ptx = [arch for arch, code in codes if code.startswith("compute_")]
    expect(ptx and all(arch.isdigit() for arch in ptx), "PTX for an architecture with a letter runs on that one only: %s" % codes)


if __name__ == "__main__":
    sys.exit(run_cases())
